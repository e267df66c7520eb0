"""The program in each container, as a container runs it: alone, with Python and nothing else."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from signal import SIGTERM

import pytest

from access import probe
from access.manifest_files import PROBE
from access.probe_answers import Answer, parse
from tests.fakes.cuda.fixtures import libraries
from tests.fakes.cuda.machine import PAGE, equip
from tests.fakes.nvml.fixtures import nvml_build, stage
from tests.gpu.rehearsing import environment

__all__ = ["nvml_build", "stage"]  # fixtures

SECRET = "5a" * 16
SIZE = 24 * PAGE


def arguments(deed: str, *more: str, nodes: str = "/dev/ful[l]") -> list[str]:
    """GPU 0 is /dev/full: everybody has it, and may open it."""
    return [sys.executable, "-IS", str(PROBE), deed, "--nonce=00", f"--secret={SECRET}", f"--nodes={nodes}", *more]


def said(deed: str, *more: str, env: dict[str, str] | None = None, **options: str) -> Answer:
    command = arguments(deed, *more, **options)
    return parse(subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True).stdout.rstrip(b"\n"), "00")


def test_it_runs_on_old_pythons_and_imports_nothing_else() -> None:
    tree = ast.parse(PROBE.read_text(), feature_version=(3, 8))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {name.name for node in imports if isinstance(node, ast.Import) for name in node.names}
    names |= {node.module for node in imports if isinstance(node, ast.ImportFrom) and node.module}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_a_node_that_is_there_is_opened_and_named() -> None:
    answer = said("try")
    assert answer.control
    assert answer.seen == answer.opened == ("/dev/full c:1:7",)
    assert (answer.context, answer.secret, answer.owner) == ("unknown", "unknown", "unasked")


def test_a_node_with_another_name_is_found_by_its_number() -> None:
    answer = said("try", "--numbers=c:1:7", nodes="/dev/none[0-9]")
    assert answer.opened == ("/dev/full c:1:7",)
    assert answer.looked == ("/dev/none[0-9]",)


def test_what_the_kernel_refuses_has_the_name_of_its_error(tmp_path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "gpu0").symlink_to("/nowhere")
    answer = said("try", f"--under={tmp_path}", nodes="/dev/gpu*")
    assert (answer.opened, [text.rpartition(" ")[2] for text in answer.refused]) == ((), ["ENOENT"])


def test_a_probe_that_never_opens_fails_its_control(monkeypatch, capsys) -> None:
    monkeypatch.setattr(probe, "attempt", lambda _path: (None, "EPERM"))
    probe.main(arguments("try")[3:])
    answer = parse(capsys.readouterr().out.encode().rstrip(b"\n"), "00")
    assert (answer.control, answer.opened) == (False, ())


def test_an_owner_ends_by_itself_after_its_time() -> None:
    assert said("own", "--stay=0.2", "--share=ends").opened == ("/dev/full c:1:7",)
    assert said("try", "--ask=unix:ends").owner == "silent"


@pytest.fixture
def owner() -> Iterator[tuple[str, Answer]]:
    """An owner that listens, and its answer."""
    name = f"test-{os.getpid()}"
    with subprocess.Popen(arguments("own", "--stay=600", f"--share={name}"), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        answer = parse(process.stdout.readline().rstrip(b"\n"), "00")
        yield name, answer
        process.send_signal(SIGTERM)


def test_an_outsider_hears_the_numbers_of_the_owner(owner) -> None:
    name, answer = owner
    assert answer.owner == "unasked"
    answered = said("try", f"--ask=unix:{name}", nodes="/dev/none[0-9]")
    assert (answered.owner, *answered.numbers) == ("holding", "c:1:7")


def test_an_open_node_comes_through_a_socket(owner) -> None:
    received = said("try", f"--receive={owner[0]}", nodes="/dev/none[0-9]")
    assert received.opened == ("the owner's descriptor c:1:7",)
    nothing = said("try", "--receive=nobody", nodes="/dev/none[0-9]")
    assert (nothing.opened, nothing.refused) == ((), ("socket ECONNREFUSED",))


def test_the_owner_of_another_run_is_not_believed(owner) -> None:
    command = [word.replace("--nonce=00", "--nonce=11") for word in arguments("try", f"--ask=unix:{owner[0]}")]
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    assert json.loads(out)["owner"] == "silent"


@pytest.mark.parametrize(
    ("changes", "context", "secret"),
    [
        ({"clears": {0: SIZE}}, "made", "not found"),
        ({"clears": {0: 0}}, "made", "found"),
        ({"refuses": 100}, "refused", "unknown"),
    ],
    ids=["clears", "clears nothing", "no device"],
)
def test_a_driver_tells_a_context_and_a_secret(stage, tmp_path, changes, context, secret) -> None:
    """The owner has ended: what it wrote lies in memory that the next one allocates."""
    gpu = stage.machine.gpu(0)
    cuda = equip(tmp_path / "cuda", [gpu], libraries(), SIZE)
    env = environment(stage, cuda.environment(stage.library.parent)) | {"CUDA_VISIBLE_DEVICES": gpu.uuid}
    if "clears" in changes:
        cuda.change(gpu.uuid, **changes)
    command = [word for word in arguments("own") if word != "-IS"]
    owner = parse(subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True).stdout.rstrip(b"\n"), "00")
    assert owner.context == "made", owner.context_why
    if "refuses" in changes:
        cuda.change(gpu.uuid, **changes)
    answer = said("try", env=env)
    assert (answer.context, answer.secret) == (context, secret), answer.context_why
