"""The machine while it runs: one process of QEMU, whose end takes everything along. It needs no root.

Its disk is the image, and what is written goes to a file that ends with it. Its network has this machine alone, on one
port of the loopback.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tests.machine import building
from tests.machine.progress import say

EMULATED, KVM = ("tcg,thread=multi,tb-size=1024", "max"), ("kvm", "host")  # accelerator and processor
BOOTS_WITHIN = 900.0  # seconds; 30 to 240 where the processor is emulated, by what else runs
STOPS_WITHIN = 180.0
CONSOLE = building.FOLDER / "console.log"
_APPEND = "root=/dev/vda rw console=ttyS0 quiet mitigations=off"


class Machine:
    """A machine that has booted."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "ConnectTimeout=60")
        self._ssh = ("ssh", "-i", str(building.KEY), "-p", str(port), *(f"-o{each}" for each in options))

    def run(self, command: str, given: IO[bytes] | int = subprocess.DEVNULL, *, quiet: bool = False) -> int:
        """Run a command of the shell as root; its exit code."""
        where = subprocess.DEVNULL if quiet else None
        whole = [*self._ssh, "root@127.0.0.1", command]
        return subprocess.run(whole, stdin=given, stdout=where, stderr=where, check=False).returncode

    def bring_checkout(self) -> None:
        """Replace the checkout inside by the files of this one, those that are not committed included."""
        files = subprocess.run(
            ["git", "ls-files", "-coz", "--exclude-standard"], cwd=building.ROOT, capture_output=True, check=True
        )
        names = [name for name in files.stdout.decode().split("\0") if name and (building.ROOT / name).is_file()]
        unpack = f"cd {building.INSIDE} && git ls-files -z | xargs -0 rm -f && tar -x"
        with subprocess.Popen(["tar", "-c", "--", *names], cwd=building.ROOT, stdout=subprocess.PIPE) as packing:
            if packing.stdout is None or self.run(unpack, packing.stdout) != 0:
                raise building.NoMachineError("cannot bring the checkout into the machine")

    def wait(self) -> None:
        """Return when it answers."""
        end = time.monotonic() + BOOTS_WITHIN
        while self.run("true", quiet=True) != 0:
            if self._process.poll() is not None or time.monotonic() > end:
                raise building.NoMachineError(f"it does not boot: see {CONSOLE}")
            time.sleep(1)

    def stop(self) -> None:
        """Shut it down, as a person would. If it does not end in time, the end of the context ends it."""
        self.run("systemctl poweroff", quiet=True)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOPS_WITHIN)


@contextmanager
def booted(accelerator: tuple[str, str]) -> Iterator[Machine]:
    """A machine, within the context."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    accel, processor = accelerator
    command: list[str | Path] = [
        "setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-machine", "q35", "-accel", accel, "-cpu", processor,
        "-smp", "2", "-m", "3072", "-display", "none", "-no-reboot", "-serial", f"file:{CONSOLE}",
        "-kernel", building.KERNEL, "-initrd", building.INITRD, "-append", _APPEND,
        "-drive", f"file={building.IMAGE},if=virtio,format=raw,snapshot=on",
        "-object", "rng-random,id=random,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=random",
        "-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22", "-device", "virtio-net-pci,netdev=net",
    ]  # fmt: skip
    say("booting")
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        try:
            machine = Machine(process, port)
            machine.wait()
            say("booted")
            yield machine
        finally:
            process.kill()
