"""``make observe`` prints its addresses and cleans up, whoever ends it."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from dashboards import shipped
from tests.dashboards.ports import PORTS, free_ports
from tests.patience import WITHIN

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (Debian: prometheus)"
)


class Observed:
    """The command in a process of its own, with a directory for its files."""

    def __init__(self, root, port, **environment) -> None:
        self.root = root
        self.process = subprocess.Popen(
            [sys.executable, "-m", "demo.bad_day", "--port", str(port), "--lasts", "0.1"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "TMPDIR": str(root), **environment},
        )  # fmt: skip
        self.said = ""

    def hear(self, words):
        assert self.process.stdout is not None
        while words not in self.said:
            line = self.process.stdout.readline()
            assert line, f"it did not say {words!r}: {self.said}{self.process.communicate()[1]}"
            self.said += line

    def end(self, number=signal.SIGTERM):
        """Send a signal, and return the exit status and stderr."""
        self.process.send_signal(number)
        printed, problems = self.process.communicate(timeout=WITHIN)
        self.said += printed
        return self.process.returncode, problems

    def left(self):
        """The processes that still run, and the files that still exist."""
        lines = {path.parent.name: _contents(path) for path in Path("/proc").glob("[0-9]*/cmdline")}
        running = [f"{pid} {line!r}" for pid, line in lines.items() if str(self.root).encode() in line]
        return running + [path.name for path in self.root.iterdir()]


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it has ended


@pytest.fixture
def observe(short_tmp):
    made: list[Observed] = []

    def start(port: int | None = None, **environment: str) -> Observed:
        made.append(Observed(short_tmp, port or free_ports(), **environment))
        return made[-1]

    yield start
    for it in made:
        if it.process.poll() is None:
            it.end()


@needs_prometheus
def test_observe_prints_the_addresses_and_cleans_up(observe):
    port = free_ports()
    observed = observe(port)
    observed.hear("the next pods are refused")
    for offset, page in enumerate(("metrics", "metrics", "-/ready")):
        assert f"http://127.0.0.1:{port + offset}" in observed.said
        with urllib.request.urlopen(f"http://127.0.0.1:{port + offset}/{page}") as answer:
            assert answer.status == 200
    assert offset + 1 == PORTS
    [folder] = re.findall(r"Import, Upload: each file in (.+)", observed.said)
    assert {path.stem for path in Path(folder).iterdir()} == {*shipped.pages()}
    assert observed.end(signal.SIGINT) == (0, "")
    assert observed.said.endswith("ended; everything is cleaned up\n")
    assert observed.left() == []


def test_observe_without_prometheus_says_what_to_install(observe, tmp_path):
    for name in ("cat", "dd", "sh"):  # all that the node needs
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    observed = observe(PATH=str(tmp_path))
    observed.hear("pods come and go")
    assert "apt install prometheus" in observed.said
    assert observed.end() == (0, "")
    assert observed.left() == []


def test_a_port_in_use_is_reported_in_one_line(observe):
    with socket.create_server(("127.0.0.1", port := free_ports())):
        observed = observe(port)
        printed, problems = observed.process.communicate(timeout=WITHIN)
    assert (observed.process.returncode, printed, problems.count("\n")) == (1, "", 1)
    assert "address already in use" in problems
    assert observed.left() == []
