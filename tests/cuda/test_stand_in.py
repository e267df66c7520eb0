"""The stand-in for CuPy offers what the real one does, with the same arguments. Skipped where that is missing."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys

import pytest

from scrubber.cuda import warmth
from tests.fakes.cuda.machine import SITE

RUNTIME = SITE / "cupy" / "cuda" / "runtime.py"
ASK = """
import sys
from scrubber.cuda import warmth
print(getattr(warmth.load().cuda.runtime, sys.argv[1]).__doc__)
"""

pytestmark = pytest.mark.skipif(warmth.missing() is not None, reason="CuPy is not installed")


def functions() -> dict[str, int]:
    """What the stand-in offers of the runtime, with how many arguments."""
    top = ast.parse(RUNTIME.read_text()).body
    public = (
        it for it in top if isinstance(it, ast.FunctionDef) and not it.name.startswith("_") and it.name != "device"
    )
    return {it.name: len(it.args.args) for it in public}


@pytest.mark.parametrize(("name", "arguments"), functions().items())
def test_the_real_runtime_has_it_with_the_same_arguments(name, arguments):
    output = subprocess.run([sys.executable, "-c", ASK, name], stdout=subprocess.PIPE, text=True, check=True).stdout
    signature = re.match(rf"{name}\((.*?)\)", output)
    assert signature is not None, output
    assert len([it for it in signature[1].split(",") if it.strip()]) == arguments


@pytest.mark.parametrize("home", ["/dev/null", "/", ""])
def test_cupy_loads_without_a_home_or_threads(home):
    count = "import os; print(len(os.listdir('/proc/self/task')))"
    program = f"from scrubber.cuda import warmth; warmth.warm(); {count}"
    output = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "HOME": home}, stdout=subprocess.PIPE, text=True, check=True
    )
    assert output.stdout == "1\n"
