"""The machine while it runs: one process of QEMU, whose end takes everything along. It needs no root.

What is written goes to an overlay of the image, which begins anew with each machine. The network has this machine
alone, on one port of the loopback.
"""

from __future__ import annotations

import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tests.machine import building
from tests.machine.progress import say

EMULATED, KVM = ("tcg,thread=multi,tb-size=1024", "max"), ("kvm", "host")  # accelerator and processor
BOOTS_WITHIN = 900.0  # seconds of a machine that runs nothing else; 30 to 240 where the processor is emulated
SAID_EVERY = 30.0  # seconds
CONSOLE = building.FOLDER / "console.log"
OVERLAY = building.FOLDER / "overlay.qcow2"
# Not committed, and no program inside can compile them again.
KERNELS = "scrubber/cuda/kernels"
_SETTINGS = """AUTOCLAVE_BACKEND=simulated
AUTOCLAVE_SIMULATED_GPUS={gpus}
AUTOCLAVE_SIMULATED_MEMORY=4MiB
AUTOCLAVE_POLICY=/etc/autoclave/policy.yaml
"""
# Times are real, and the processor is emulated.
_POLICY = """name: machine
defaults:
  paths: {first_look: fast}
  clear: {passes: zero}
  timeouts: 10
"""
_APPEND = "root=/dev/vda rw console=ttyS0 quiet systemd.show_status=1 mitigations=off"


class Machine:
    """A machine."""

    process: subprocess.Popen[bytes]

    def __init__(self, command: Sequence[str | Path], port: int) -> None:
        """It does not run yet. ``command``: QEMU; ``port``: of this machine, for ssh."""
        self._command = command
        options = (
            "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "ConnectTimeout=60",
            "ServerAliveInterval=60", "ControlMaster=auto", f"ControlPath=/tmp/autoclave-machine-{port}",
            "ControlPersist=60",
        )  # fmt: skip
        self.ssh = (
            "ssh", "-i", str(building.KEY), "-p", str(port), *(f"-o{each}" for each in options), "root@127.0.0.1",
        )  # fmt: skip

    def start(self) -> None:
        """Return when it has booted, from the disk as it was left."""
        say("booting")
        self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL)
        self.wait()
        say("booted")

    def cut_power(self) -> None:
        """Return when it has ended, with all that its disk was not told."""
        self.process.kill()
        self.process.wait()
        self._forget()

    def _forget(self) -> None:
        subprocess.run([*self.ssh[:-1], "-O", "exit", self.ssh[-1]], stderr=subprocess.DEVNULL, check=False)

    def run(self, command: str, given: IO[bytes] | int = subprocess.DEVNULL, *, quiet: bool = False) -> int:
        """Run a command of the shell as root; its exit code."""
        where = subprocess.DEVNULL if quiet else None
        whole = [*self.ssh, command]
        return subprocess.run(whole, stdin=given, stdout=where, stderr=where, check=False).returncode

    def tries(self, name: str, command: str) -> int:
        """Run a command of the shell in the checkout, and say how it went; its exit code."""
        say(name)
        code = self.run(f"cd {building.INSIDE} && {{ {command}\n}}")
        say(f"{name}: {'passed' if code == 0 else f'failed, exit code {code}'}")
        return code

    def output(self, command: str) -> str:
        """What the command prints. Raises CalledProcessError if it fails."""
        return subprocess.run(
            [*self.ssh, command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, text=True
        ).stdout

    def bring_checkout(self) -> None:
        """Replace the checkout inside by the files of this one, those that are not committed included."""
        listed = subprocess.run(
            ["git", "ls-files", "-coz", "--exclude-standard"], cwd=building.ROOT, capture_output=True, check=True
        ).stdout.decode()
        compiled = [str(path.relative_to(building.ROOT)) for path in (building.ROOT / KERNELS).glob("*.[cp]*")]
        names = sorted({name for name in (*listed.split("\0"), *compiled) if (building.ROOT / name).is_file()})
        # What make compares by time is as new as what it was made of.
        unpack = (
            f"cd {building.INSIDE} && git ls-files -z | xargs -0 rm -f && runuser -u ordinary -- tar -x "
            f"&& touch .venv/.ready {KERNELS}/scrub.ptx"
        )
        with subprocess.Popen(["tar", "-c", "--", *names], cwd=building.ROOT, stdout=subprocess.PIPE) as packing:
            if packing.stdout is None or self.run(unpack, packing.stdout) != 0:
                raise building.NoMachineError("cannot bring the checkout into the machine")

    def install(self, gpus: int) -> None:
        """Install Autoclave by the lines of the page; what they take from the network is in the image already."""
        wheels = building.FOLDER / "wheel"
        pip = f"{building.ROOT}/.venv/bin/python -m pip wheel -qq --no-deps --no-build-isolation"
        subprocess.run([*shlex.split(pip), "-w", wheels, building.ROOT], check=True)
        [wheel] = wheels.glob("*.whl")
        with wheel.open("rb") as content:
            self.run(f"cat > /tmp/{wheel.name}", content)
        wheel.unlink()
        lines = [line.replace(" .", f" /tmp/{wheel.name}") for line in building.installing()[2:]]
        lines.insert(-3, f"printf %s {shlex.quote(_POLICY)} > /etc/autoclave/policy.yaml")
        lines.insert(-3, f"printf %s {shlex.quote(_SETTINGS.format(gpus=gpus))} > /etc/autoclave/scrubber.env")
        if self.run(f"set -e; cd {building.INSIDE}; " + "; ".join(lines)) != 0:
            raise building.NoMachineError("cannot install Autoclave by the page's lines")

    def wait(self) -> None:
        """Return when it answers."""
        self._until(lambda: self.run("true", quiet=True) == 0, "it does not boot")

    def _until(self, answers: Callable[[], bool], fault: str) -> None:
        """Return when it answers. What else runs here makes the limit longer, and each half minute has a line."""
        spent, seen = 0.0, time.monotonic()
        said = seen
        while not answers():
            now = time.monotonic()
            spent, seen = spent + (now - seen) / stretch(), now
            if self.process.poll() is not None or spent > BOOTS_WITHIN:
                raise building.NoMachineError(f"{fault}: see {CONSOLE}")
            if now - said >= SAID_EVERY:
                said = now
                say(f"waiting for its ssh server, for up to {BOOTS_WITHIN - spent:.0f} s more; {_console()}")
            time.sleep(1)

    def reboot(self) -> None:
        """Return when it answers after a reboot."""
        boot = self.output("cat /proc/sys/kernel/random/boot_id")
        self.run("systemctl reboot", quiet=True)
        self._forget()

        def answers() -> bool:
            with suppress(subprocess.CalledProcessError):
                return self.output("cat /proc/sys/kernel/random/boot_id 2>/dev/null") != boot
            return False

        self._until(answers, "it does not boot again")


def stretch() -> float:
    """How many times longer work takes now than with a processor of its own."""
    began, work = time.monotonic(), time.process_time() + 0.02
    while time.process_time() < work:
        pass
    return max(1.0, (time.monotonic() - began) / 0.02)


def _console() -> str:
    """What it has last said of itself."""
    lines = CONSOLE.read_text(errors="replace").split("\n") if CONSOLE.exists() else []
    shown = ("".join(letter for letter in line if letter.isprintable()).strip() for line in reversed(lines))
    return f"its console says {next(filter(None, shown), 'nothing')!r}"


@contextmanager
def booted(accelerator: tuple[str, str], more: Sequence[str | Path] = ()) -> Iterator[Machine]:
    """A machine that has booted, within the context. ``more`` goes to QEMU."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    create = ("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b")
    subprocess.run([*create, building.IMAGE, OVERLAY], check=True)
    accel, processor = accelerator
    command: list[str | Path] = [
        "setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-machine", "q35", "-accel", accel, "-cpu", processor,
        "-smp", "2", "-m", "3072", "-display", "none", "-serial", f"file:{CONSOLE}",
        "-kernel", building.KERNEL, "-initrd", building.INITRD, "-append", _APPEND,
        "-drive", f"file={OVERLAY},if=none,id=root,format=qcow2", "-device", "virtio-blk-pci,drive=root",
        "-object", "rng-random,id=random,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=random",
        "-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22", "-device", "virtio-net-pci,netdev=net",
        *more,
    ]  # fmt: skip
    machine = Machine(command, port)
    try:
        machine.start()
        yield machine
    finally:
        machine.cut_power()
