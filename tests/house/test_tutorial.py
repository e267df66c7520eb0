"""Part one of the tutorial, typed as it stands there at terminals."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from autoclave.cli import service_call
from tests import default_dirs
from tests.patience import WITHIN

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PART = (ROOT / "docs/tutorial.md").read_text().split("## Part one")[1].split("## Part two")[0]
BLOCKS = [block.rstrip().splitlines() for block in BLOCK.findall(PART)]
ROWS = re.findall(r"^\| (first|second) \| `(.+?)` \| (.+) \|$", PART, re.MULTILINE)
ACTIVATE = "source .venv/bin/activate"
CONTROL = re.compile(r"\r|\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")
PROMPT = "what next? "
PLACED = ("AUTOCLAVE_POD_LOGS_DIR",)  # the page does not set them


class Shell:
    """Somebody at a terminal, who waits for what he expects to see."""

    def __init__(self, place: Path, alive: ExitStack) -> None:
        self._place, self._seen, self._asked = place, "", 0
        self._ours, theirs = pty.openpty()
        alive.callback(os.close, self._ours)
        env = {"HOME": str(place), "TERM": "xterm", "PS1": PROMPT, "PATH": os.environ["PATH"]}
        env |= {**default_dirs.NOWHERE, **dict.fromkeys(PLACED, str(place))}
        env["AUTOCLAVE_SIMULATED_MEMORY"] = "1MiB"  # a scrub of the default takes seconds
        env["AUTOCLAVE_SERVICE_WAIT"] = f"{WITHIN}s"  # a service starts more slowly where other tests run
        command = ["setsid", "--ctty", "bash", "--norc", "--noprofile", "-i"]
        self.process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        alive.callback(self._end)
        self.do("stty -echo cols 200")  # what is typed must not be taken for an answer

    def type(self, line: str) -> None:
        """One line of the page, its places replaced by ours."""
        if line == ACTIVATE:  # whichever environment runs the tests is the one
            line = f"export PATH={Path(sys.executable).parent}:$PATH"
        os.write(self._ours, line.replace("/tmp/autoclave", str(self._place)).encode() + b"\n")

    def do(self, line: str) -> tuple[str, int]:
        """A line, all that it says, and its exit code."""
        self._asked += 1
        self.type(line)
        self.type(f"printf 'ended %s %s\\n' {self._asked} $?")
        said = self.see(rf"ended {self._asked} (\d+)\n")
        return said.string[: said.start()], int(said[1])

    def see(self, pattern: str) -> re.Match[str]:
        """Wait for it, and forget what came before it."""
        until = time.monotonic() + WITHIN
        while (found := re.search(pattern, self._seen)) is None:
            ready, _, _ = select.select([self._ours], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"{pattern!r} was not seen in:\n{self._seen}"
            self._seen += CONTROL.sub("", os.read(self._ours, 65536).decode(errors="replace"))
        self._seen = self._seen[found.end() :]
        return found

    def interrupt(self) -> None:
        """Ctrl-C, which throws away what is typed before the prompt is back."""
        os.write(self._ours, b"\x03")
        self.see(re.escape(PROMPT))

    def _end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def alive():
    with ExitStack() as open_ones:
        yield open_ones


@pytest.mark.timeout(300)  # a dozen programs are started, each for a second on an idle machine
def test_the_first_part_of_the_tutorial_works(short_tmp, alive):
    demo, start, left, fault, plugin, again, books = BLOCKS
    assert demo == ["make demo"]
    (short_tmp / "there").mkdir()
    first = Shell(short_tmp / "there", alive)
    begin(first, start)
    see_something_left_behind(short_tmp / "there", first, left)
    break_and_repair(short_tmp / "there", first, fault)
    with_a_plugin(first, Shell(short_tmp / "there", alive), plugin, again)
    check_the_books(first, books)
    assert not (short_tmp / "there").exists()
    assert "autoclave" not in first.do("jobs")[0]


def begin(shell, lines):
    *settings, service, watch = lines
    assert settings[0] == ACTIVATE
    for line in settings:
        assert shell.do(line)[1] == 0
    shell.type(service)
    shell.type(watch)
    shell.see(r"(?s)\n0 +GPU-\S+ +clean[^\n]*\n1 +GPU-\S+ +clean")
    shell.interrupt()


def see_something_left_behind(place, shell, lines):
    occupy, status, scrub, release, history = (line.split("  #")[0] for line in lines)
    assert shell.do(occupy)[1] == 0
    settled(place, "dirty")
    assert re.search(r"\n0 +GPU-\S+ +dirty", shell.do(status)[0])
    assert "\n1\n" in shell.do(scrub)[0]
    assert shell.do(release)[1] == 0
    settled(place, "clean")
    output = shell.do(history)[0]
    assert "12 bytes of residue found" in " ".join(output.split())
    assert "hush" not in output


def break_and_repair(place, shell, lines):
    xid, *commands = (line.split("  #")[0] for line in lines)
    assert shell.do(xid)[1] == 0
    settled(place, "quarantined")
    for command in commands:
        said, code = shell.do(command)
        assert code == 0, said


def settled(place, state):
    """Wait until the service says so of the first GPU, where a person would look again."""

    async def until(admin) -> None:
        status = await admin.status(["0"])
        while status.devices[0].state != state:
            status = await admin.status(["0"], newer_than=status.service.ledger_rows, wait=10)

    service_call.ask(place / "run", until)


def with_a_plugin(first, second, lines, again):
    assert again[0] == ACTIVATE
    for line in again:
        assert second.do(line)[1] == 0
    for line in lines:
        first.type(line)
    first.see(r"GPU-\S+=Healthy GPU-\S+=Healthy")
    runs = iter((r"pod both: Failed", r"(?s)Allocate.*PreStartContainer.*pod both: Running"))
    output = {"quarantine": r"GPU-\S+=Unhealthy", "reinstate": r"GPU-\S+=Healthy GPU-\S+=Healthy"}
    for shell, line, _ in ROWS:
        if shell == "first":
            first.type(line)
            first.see(next(runs))
            continue
        said, code = second.do(line)
        assert code == 0, said
        if (verb := line.split()[1]) in output:
            first.see(output[verb])
    assert len(re.findall(r"in_use|granted", said)) == 2
    first.interrupt()


def check_the_books(shell, lines):
    verify, doctor, stop, once_more, remove = (line.split("  #")[0] for line in lines)
    assert shell.do(verify)[1] == 0
    assert shell.do(doctor)[1] == 1
    assert shell.do(stop)[1] == 0
    assert shell.do(once_more)[1] == 0
    assert shell.do(remove)[1] == 0
