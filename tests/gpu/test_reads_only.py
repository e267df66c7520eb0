"""Whatever looks at real hardware only reads: it can be run on a machine that is not ours to change.

What works on a GPU's memory overwrites that memory, and changes nothing else.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pynvml
import pytest

from benchmarks.nvml_questions import NotARead, reads_only
from tests.fakes.nvml.changing_calls import CHANGERS

ROOT = Path(__file__).parents[2]
STAGED = [ROOT / "tests/gpu" / name for name in ("test_trial.py", "test_rehearsal.py")]  # meet stand-ins only
WRITERS = [
    *(ROOT / "tests/gpu" / name for name in ("test_scrub.py", "inside.py")),
    *(ROOT / "benchmarks/trial").glob("*.py"),
]
LOOKERS = [
    *(file for file in (ROOT / "tests/gpu").glob("*.py") if file not in (*WRITERS, *STAGED)),
    *(ROOT / "benchmarks").glob("nvml*.py"),
]
CHANGES = re.compile(  # a thread of CUDA "sets" its context
    r"(?<!cuCtx)Set[A-Z]|nvmlEvent|[Cc]lear|[Cc]reat|[Dd]estroy|[Mm]odify|[Rr]emove|[Dd]iscover|[Rr]eset|[Rr]estor|allow_cuda"
    r"|lay_out|nvidia-smi|SMI|NvidiaGpu|let_go|O_(?:WRONLY|RDWR)"
)


ASKED = {"fence.py": {"O_RDWR", "nvidia-smi"}}
CHANGES_MORE = re.compile(  # CUDA "sets" memory, which a process has to itself
    r"(?<!cuMem)[sS]et[A-Z]|nvmlEvent|nvml\w*(?:Clear|Creat|Destroy|Modify|Remove|Discover)|[Rr]eset|RESET|[Rr]estor|SETTINGS|EVICT"
    r"|allow_cuda|lay_out|nvidia-smi|SMI|NvidiaGpu|let_go|O_(?:WRONLY|RDWR)"
)


def said(tree: ast.AST):
    """Every name and every text, but for docstrings."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.alias(name=name) | ast.ImportFrom(module=str(name)):
                yield name
            case ast.Constant(value=str(text)) if not text.endswith("."):
                yield text


@pytest.mark.parametrize("file", [file for file in LOOKERS if file.name != Path(__file__).name], ids=lambda it: it.name)
def test_the_reading_tests_call_no_function_that_changes(file) -> None:
    assert [word for word in said(ast.parse(file.read_text())) if CHANGES.search(word)] == []


@pytest.mark.parametrize("file", WRITERS, ids=lambda it: it.name)
def test_the_writing_tests_change_only_memory(file) -> None:
    words = {word for word in said(ast.parse(file.read_text())) if " " not in word}  # sentences are for people
    # The fence is asked about a node that is opened for writing, as drivers do, and by nvidia-smi, which only lists.
    assert {word for word in words if CHANGES_MORE.search(word)} == ASKED.get(file.name, set())


def test_the_checked_files_exist() -> None:
    assert {"conftest.py", "test_nvml.py", "nvml.py", "nvml_questions.py"} <= {file.name for file in LOOKERS}
    assert {"test_scrub.py", "inside.py", "__main__.py", "proof.py"} <= {file.name for file in WRITERS}


def test_the_guard_lets_no_function_through_that_changes_anything() -> None:
    """Of all of pynvml's, known by their verb."""
    names = [name for name in vars(pynvml) if CHANGERS.match(name) and "Get" not in name]
    assert {"nvmlDeviceSetPersistenceMode", "nvmlGpuInstanceDestroy", "nvmlDeviceRemoveGpu_v2"} & {*names}
    for name in names:
        with reads_only(), pytest.raises(NotARead, match=name):
            pynvml._nvmlGetFunctionPointer(name)


def test_the_guard_is_gone_afterwards_and_lets_reads_through() -> None:
    before = pynvml._nvmlGetFunctionPointer
    with reads_only():
        assert pynvml._nvmlGetFunctionPointer is not before
        with pytest.raises(pynvml.NVMLError):  # asked for, and not found or not open: that is the library's answer
            pynvml._nvmlGetFunctionPointer("nvmlDeviceGetNothing")
    assert pynvml._nvmlGetFunctionPointer is before
