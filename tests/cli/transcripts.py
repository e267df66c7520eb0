"""Golden files of the command line: commands of one verb in a row, and what each of them prints, word for word.

    # A job has the GPU.
    % acquire 0            a command that succeeds; its words stand in the file of its verb
    %2 history 0,1         one that exits with 2
    @ 0 granted            wait until the GPU is in this state
    < site.yaml name: a    a file in DIR
    > node.pem receipt key a file in DIR, of what the command prints
    $ scrub 0              a command, after its variables, and all that it says:
    exit 4
    | a line on stdout
    ! a line on stderr

People write all but the words. What differs from run to run has a name in capitals.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from click.testing import Result

from autoclave.cli import UNREACHABLE, WRONG_USAGE
from scrubber import __version__
from tests.live import Service

FILES = sorted((Path(__file__).parent / "golden").glob("*.txt"))
VARIES = [
    (re.compile(pattern, re.MULTILINE), name)
    for pattern, name in (
        (re.escape(__version__), "VERSION"),
        (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", "TIME"),
        (r'"\S+" \(pid \d+(, user [^,)]+)?', '"NAME" (pid PID'),
        (r"(?<=process )\d+|(?<=kill )\d+|(?<=kill -9 )\d+|(?<=ended )\d+", "PID"),
        (r"(user \S+ \()?uid \d+\)?", "USER"),
        (r"\b([0-9a-f]{4,8}-)*[0-9a-f]{12,}\b", "ID"),
        (r"\b\d+(\.\d+)?(e-\d+)?(ms|s|m|h)\b(?= ago|  |, \S+ \d| \((fast|slow|reset)\))", "TIME"),
        (r"(?<= of autoclave/)\S+|(?<= on )\S+(?=, policy )", "HOST"),
        (r"\d+(?= rows\b)|(?<=the last is )\d+|(?<= row )\d+( of \d+)?|^\d+(?= +TIME)", "N"),
        (r"(?<= has room for )\d+ MiB( and \d+ files)?", "ROOM"),
        (r"( ago  \S+ \S+) .*", r"\1 ..."),  # history has the words of events
        (r"  +", "  "),
    )
]
FAULTS = (
    "policy check ",
    "xid 79 --policy ",
    "plugin --config ",
    "scrubber --config ",
)  # they print the faults of a file as they are


@dataclass
class Stage:
    """Where a file is played."""

    folder: Path
    autoclave: Callable[..., Result]
    uuids: Mapping[str, str]
    service: Service | None

    def run(self, line: str) -> Result:
        """A command. A refusal of what was typed, or for want of a service, is one line."""
        words = [name for word in shlex.split(line) for name in self.named(word)]
        count = next(number for number, word in enumerate(words) if "=" not in word)
        variables = dict(word.split("=", 1) for word in words[:count])
        run = self.autoclave(*(word.encode().decode("unicode_escape") for word in words[count:]), **variables)
        if run.exit_code in {WRONG_USAGE, UNREACHABLE} and not line.startswith(FAULTS):
            assert (run.stdout, run.stderr[:18], run.stderr.count("\n")) == ("", "autoclave: cannot ", 1), run.output
        return run

    def named(self, word: str) -> list[str]:
        """A word, or the files that it stands for."""
        if "*" in word:
            return [str(file) for file in sorted(self.folder.glob(word.removeprefix("DIR/")))]
        return [word.replace("DIR", str(self.folder))]

    def lines(self, run: Result) -> Iterator[str]:
        """The exit code, and what was printed on both streams."""
        yield f"exit {run.exit_code}"
        yield from (f"| {line}".rstrip() for line in self.same_each_time(run.stdout).splitlines())
        yield from (f"! {line}".rstrip() for line in self.same_each_time(run.stderr).splitlines())

    def same_each_time(self, text: str) -> str:
        for name, uuid in self.uuids.items():
            text = text.replace(uuid, name).replace(uuid[:12], name)
        text = text.replace(str(self.folder), "DIR")
        for pattern, name in VARIES:
            text = pattern.sub(name, text)
        return text

    def play(self, file: str) -> str:
        """The file with what is printed now."""
        played = []
        for line in file.splitlines():
            if line.startswith(("exit ", "|", "!")):
                continue
            played.append(line)
            mark, _, rest = line.partition(" ")
            match mark[:1]:
                case "%":
                    run = self.run(rest)
                    assert run.exit_code == int(mark[1:] or 0), run.output
                case "@":
                    assert self.service is not None
                    self.service.settled(*rest.split())
                case "<":
                    name, _, text = rest.partition(" ")
                    (self.folder / name).parent.mkdir(exist_ok=True)
                    (self.folder / name).write_text(text.encode().decode("unicode_escape"))
                case ">":
                    name, _, command = rest.partition(" ")
                    (self.folder / name).write_text(self.run(command).stdout)
                case "$":
                    played += self.lines(self.run(rest))
        return "".join(f"{line}\n" for line in played)


def by_hand(file: str) -> list[str]:
    """All but the words: the cases, the exit codes, and which streams have words."""
    marks = (line[0] if line.startswith(("|", "!")) else line for line in file.splitlines())
    return [line for line, _ in groupby(marks)]
