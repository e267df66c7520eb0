"""The machine while it runs: user-mode Linux, an ordinary process, whose end takes everything along. It needs no root.

Each run has a folder of its own: the disk is what differs from the image. A serial line carries commands and what they
print, to ``agent.py`` inside, and the folder is ``/host`` inside.
"""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import queue
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tests.machine import building
from tests.machine.progress import say

DISKS = "bcdefgh"  # the letters of further disks
KERNEL = next(iter(building.KERNELS))
MEMORY = 2 << 30  # bytes, in a file of this directory
MEMORY_IN = Path("/dev/shm")
BOOTS_WITHIN = 900.0  # seconds; 15 where nothing else runs
SAID_EVERY = 30.0  # seconds
CONSOLE = building.FOLDER / "console.log"  # of the last machine that failed
_AGENT = Path(__file__).with_name("agent.py")
_SETTINGS = """AUTOCLAVE_BACKEND=simulated
AUTOCLAVE_SIMULATED_GPUS={gpus}
AUTOCLAVE_SIMULATED_MEMORY=4MiB
AUTOCLAVE_POLICY=/etc/autoclave/policy.yaml
"""
# A call of the kernel takes a hundred times as long as on this machine.
_POLICY = """name: machine
defaults:
  paths: {first_look: fast}
  clear: {passes: zero}
  timeouts: 10
"""
# The kernel's own root, with what it uses of this machine. The shell is process 1 of the namespace.
_ENTER = """for each in dev proc; do mount --rbind "/$each" "$0/$each"; done
mount --bind "$1" "$0/run"; mount --bind "$2" "$0/image"
shift 2
chroot "$0" /usr/bin/linux.uml "$@"
"""
LINUX = ("setpriv", "--pdeathsig", "KILL", *building.NAMESPACES, "sh", "-c", _ENTER)


class Machine:
    """A machine."""

    process: subprocess.Popen[bytes]

    def __init__(self, folder: Path, disks: Sequence[Path] = (), more: Sequence[str] = ()) -> None:
        """It does not run yet. ``disks``: files in the file system of its folder; they are /dev/ubdb and so on.

        ``more`` goes to user-mode Linux.
        """
        self.folder, self.console = folder, folder / "console.log"
        for disk in disks:
            (folder / disk.name).hardlink_to(disk)
        self._more = [*(f"ubd{number}=/run/{disk.name}" for number, disk in enumerate(disks, 1)), *more]
        self._numbers = itertools.count()
        self._answers: dict[int | str, queue.SimpleQueue[list[object] | None]] = {}

    def start(self, kernel: str = KERNEL) -> None:
        """Return when it has booted, from the disk as it was left."""
        say(f"booting Linux {kernel}")
        shutil.copy(_AGENT, self.folder)
        self._answers = {"up": queue.SimpleQueue()}
        requests, self._requests = os.pipe()
        answers, answering = os.pipe()
        command: list[str | Path] = [
            *LINUX, building.kernel(kernel), self.folder, building.FOLDER,
            f"mem={MEMORY >> 20}M", "ubd0=/run/cow,/image/disk.img", *self._more, "root=/dev/ubda", "rw",
            "init=/usr/sbin/start", "con=null", "con0=null,fd:1", "ssl=null", f"ssl0=fd:{requests},fd:{answering}",
            "uml_dir=/run/", "quiet", "systemd.show_status=1",
        ]  # fmt: skip
        environment = {"PATH": f"{os.defpath}:/sbin:/usr/sbin", "TMPDIR": str(MEMORY_IN), "HOME": "/run"}
        with self.console.open("ab") as console:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=console, stderr=console,
                pass_fds=(requests, answering), start_new_session=True,
            )  # fmt: skip
        os.close(requests)
        os.close(answering)
        threading.Thread(target=self._hear, args=(os.fdopen(answers, "rb"), self._answers), daemon=True).start()
        self.wait()
        say("booted")

    def cut_power(self) -> None:
        """Return when it has ended, with all that its disk was not told."""
        self.process.kill()
        self.process.wait()

    @staticmethod
    def _hear(line: BinaryIO, answers: dict[int | str, queue.SimpleQueue[list[object] | None]]) -> None:
        """Give each command its answers, and None when the machine has ended or boots again."""
        with line:
            for text in line:
                key, *words = json.loads(text)
                if key == "up":
                    for number in [each for each in answers if each != "up"]:
                        answers.pop(number).put(None)
                if key in answers:
                    answers[key].put(words)
        for each in list(answers.values()):
            each.put(None)

    def wait(self) -> None:
        """Return when it has booted."""
        end = time.monotonic() + BOOTS_WITHIN
        while True:
            try:
                answer = self._answers["up"].get(timeout=min(SAID_EVERY, max(0.0, end - time.monotonic())))
            except queue.Empty:
                if time.monotonic() >= end:
                    raise self._fault("it does not boot") from None
                say(f"waiting for its boot, for up to {end - time.monotonic():.0f} s more; {self._last_line()}")
                continue
            if answer is None:
                raise self._fault("it has ended")
            return

    def _fault(self, what: str) -> building.NoMachineError:
        if self.console.exists():
            shutil.copy(self.console, CONSOLE)
        return building.NoMachineError(f"{what}: see {CONSOLE}; {self._last_line()}")

    def _last_line(self) -> str:
        """What it has last said of itself."""
        lines = self.console.read_text(errors="replace").split("\n") if self.console.exists() else []
        shown = ("".join(letter for letter in line if letter.isprintable()).strip() for line in reversed(lines))
        return f"its console says {next(filter(None, shown), 'nothing')!r}"

    def listen(self, command: str, take: Callable[[str, bytes], None]) -> int:
        """Run a command of the shell as root; what it prints goes to ``take``, as "out" or "err". Its exit code."""
        number = next(self._numbers)
        answers = self._answers[number] = queue.SimpleQueue()
        os.write(self._requests, (json.dumps([number, command]) + "\n").encode())
        while self.process.poll() is None or not answers.empty():
            match answers.get():
                case [str(name), str(content)]:
                    take(name, base64.b64decode(content))
                case [int(code)]:
                    self._answers.pop(number, None)
                    return code
                case _:
                    break
        raise self._fault("it has ended")

    def run(self, command: str) -> int:
        """Run a command of the shell as root; what it prints is printed here. Its exit code."""
        streams = {"out": sys.stdout, "err": sys.stderr}

        def show(name: str, content: bytes) -> None:
            streams[name].write(content.decode(errors="replace"))
            streams[name].flush()

        return self.listen(command, show)

    def output(self, command: str) -> str:
        """What the command prints. Raises CalledProcessError if it fails."""
        printed = {"out": b"", "err": b""}

        def keep(name: str, content: bytes) -> None:
            printed[name] += content

        if code := self.listen(command, keep):
            raise subprocess.CalledProcessError(code, command, printed["out"], printed["err"])
        return printed["out"].decode()

    def tries(self, name: str, command: str) -> int:
        """Run a command of the shell in the checkout, and say how it went; its exit code."""
        say(name)
        code = self.run(f"cd {building.INSIDE} && {{ {command}\n}}")
        say(f"{name}: {'passed' if code == 0 else f'failed, exit code {code}'}")
        return code

    def bring_checkout(self) -> None:
        """Replace the checkout inside by the files of this one, those that are not committed included."""
        listed = subprocess.run(
            ["git", "ls-files", "-coz", "--exclude-standard"], cwd=building.ROOT, capture_output=True, check=True
        ).stdout.decode()
        names = [name for name in listed.split("\0") if (building.ROOT / name).is_file()]
        subprocess.run(["tar", "-c", "-f", self.folder / "checkout.tar", "--", *names], cwd=building.ROOT, check=True)
        # What make compares by time is as new as what it was made of.
        unpack = (
            f"cd {building.INSIDE} && git ls-files -z | xargs -0 rm -f && tar -x -o -f /host/checkout.tar"
            " && chown -R ordinary: . && touch .venv/.demo && touch .venv/.ready scrubber/cuda/kernels/scrub.ptx"
        )
        if self.run(unpack) != 0:
            raise building.NoMachineError("cannot bring the checkout into the machine")

    def install(self, gpus: int) -> None:
        """Install Autoclave by the lines of the page; what they take from the network is in the image already."""
        wheel = ".venv/bin/python -m pip wheel -qq --no-deps --no-build-isolation -w /tmp/wheel ."
        lines = [line.replace(" .", " /tmp/wheel/*.whl") for line in building.installing()[2:]]
        lines.insert(-3, f"printf %s {shlex.quote(_POLICY)} > /etc/autoclave/policy.yaml")
        lines.insert(-3, f"printf %s {shlex.quote(_SETTINGS.format(gpus=gpus))} > /etc/autoclave/scrubber.env")
        if self.run(f"set -e; cd {building.INSIDE}; {wheel}; " + "; ".join(lines)) != 0:
            raise building.NoMachineError("cannot install Autoclave by the page's lines")

    def reboot(self) -> None:
        """Return when it has booted again."""
        with suppress(building.NoMachineError):  # the boot ends the command, unless it has ended before
            self.listen("systemctl reboot", lambda _, __: None)
        self.wait()


@contextmanager
def booted(
    kernels: Sequence[str] = (KERNEL,), disks: Sequence[Path] = (), more: Sequence[str] = ()
) -> Iterator[Machine]:
    """A machine that has booted the first of the kernels, within the context."""
    building.demand(kernels)
    if (free := shutil.disk_usage(MEMORY_IN).free) < MEMORY:
        raise building.NoMachineError(
            f"its memory is {MEMORY >> 20} MiB in {MEMORY_IN}, which has {free >> 20} MiB left"
        )
    with own_folder() as folder:
        machine = Machine(folder, disks, more)
        try:
            machine.start(kernels[0])
            yield machine
        finally:
            machine.cut_power()


@contextmanager
def own_folder() -> Iterator[Path]:
    """A folder of this run; those of runs that were killed are removed. A lock tells: others have other process ids."""
    with ExitStack() as closing:
        with (building.FOLDER / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for path in building.FOLDER.glob("run-*"):
                with ExitStack() as looking, suppress(BlockingIOError):
                    _lock(path, looking)
                    shutil.rmtree(path)
            folder = Path(tempfile.mkdtemp(prefix="run-", dir=building.FOLDER))
            _lock(folder, closing)
        closing.callback(shutil.rmtree, folder)
        yield folder


def _lock(folder: Path, closing: ExitStack) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    closing.callback(os.close, descriptor)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
