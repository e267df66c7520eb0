"""The guards of ``tests/conftest.py`` guard."""

import asyncio
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests import default_dirs

NOWHERE = "192.0.2.1"  # reserved for documentation, never routed


@pytest.mark.parametrize(
    "call",
    [
        lambda sock: sock.connect((NOWHERE, 80)),
        lambda sock: sock.connect_ex((NOWHERE, 80)),
        lambda sock: sock.sendto(b"hello", (NOWHERE, 53)),
        lambda _sock: socket.getaddrinfo("example.invalid", 80),
    ],
)
def test_a_test_cannot_reach_the_network(call):
    with socket.socket() as sock, pytest.raises(RuntimeError, match="must not reach the network"):
        call(sock)


async def test_the_event_loop_is_guarded_too():
    with pytest.raises(RuntimeError, match="must not reach the network"):
        await asyncio.open_connection(NOWHERE, 80)


def test_the_home_directory_cannot_be_touched():
    script = "from pathlib import Path; Path('~/.autoclave').expanduser().write_text('')"
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "NotADirectoryError" in child.stderr


def test_the_callers_configuration_does_not_leak_in():
    assert {name: path for name, path in os.environ.items() if name.startswith("AUTOCLAVE_")} == default_dirs.NOWHERE


@pytest.mark.parametrize("use", [os.listdir, os.mkdir, os.scandir, lambda it: Path(it, "lock").touch()])
@pytest.mark.parametrize("path", default_dirs.PLACES)
def test_a_test_cannot_use_a_default_directory(use, path):
    with pytest.raises(RuntimeError, match="must not use a default directory"):
        use(path)


def test_a_service_that_is_given_no_directory_does_not_start():
    child = subprocess.run([sys.executable, "-m", "autoclave", "scrubber"], capture_output=True, text=True, check=False)
    assert child.stderr.startswith(f"autoclave: cannot use run directory {os.devnull}/RUN: Not a directory")


def test_the_gate_takes_the_same_few_examples_every_time(request):
    if request.config.getoption("--night"):
        pytest.skip("at night the examples are many and new")
    assert (settings().max_examples, settings().derandomize) == (50, True)


def test_the_closing_lines_count_the_skips_for_want_of_rights(tmp_path):
    marks = [f'@pytest.mark.skipif(True, reason="{it}")' for it in ("takes root, to mount", "takes root", "no gcc")]
    tests = "".join(f"{mark}\ndef test_{number}(): ...\n" for number, mark in enumerate(marks))
    (tmp_path / "test_a.py").write_text(f"import pytest\n{tests}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "--rootdir", tmp_path, tmp_path]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[-3].startswith(f"Ran on Python {platform.python_version()}")
    assert lines[-2].startswith("Skipped for want of rights: 2. To run all tests, run make test as root")
    assert lines[-1].startswith("3 skipped in ")
