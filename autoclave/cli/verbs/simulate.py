"""``autoclave simulate``: drills (faults, signs, holders) on simulated GPUs. Real GPUs are never touched."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from autoclave.cli import DURATION, ENVIRONMENT, Parsed, options, service_call
from autoclave.cli.output import human
from ground.documents import units
from ground.errors import InvalidRequest, Reason, Refused
from ground.quantities import quantity
from policies.hardware import DeviceSign
from scrubber.core.model import AilmentKind
from scrubber.devices.simulated import drills, layout


@dataclass(frozen=True, slots=True)
class DrillTarget:
    """A simulated GPU and its directory."""

    root: Path
    uuid: str
    index: int

    @property
    def healed(self) -> str:
        """How the fault ends."""
        return f"`autoclave simulate heal {self.index}` ends it"


def find_target(gpu: str, simulated_dir: Path | None, run_dir: Path) -> DrillTarget:
    """The GPU with this name: its index, UUID, or a unique prefix of its UUID, as for the service."""
    if simulated_dir is not None:
        infos = [place.info() for place in layout.places(simulated_dir)]
        fits = [info for info in infos if gpu == str(info.index) or (gpu and info.uuid.lower().startswith(gpu.lower()))]
        if len(fits) == 1:
            return DrillTarget(simulated_dir, fits[0].uuid, fits[0].index)
        names = ", ".join(f"{info.index} ({info.uuid})" for info in fits or infos) or "nothing"
        why = f"it could be any of {names}" if fits else f"there is {names} in {simulated_dir}"
        raise InvalidRequest(f"cannot find GPU {gpu}: {why}")
    status = service_call.ask(run_dir, lambda admin: admin.status([gpu]))
    if not status.service.simulated_dir:
        raise Refused(
            Reason.INVALID_REQUEST,
            f"cannot simulate on backend {status.service.backend}: its GPUs are real",
            "start a service with --backend simulated for drills",
        )
    device = status.devices[0]
    return DrillTarget(Path(status.service.simulated_dir), device.device, device.index)


SIZE = Parsed("size", units.parse_size)
SECRET = "the last tenant was here"  # noqa: S105 - no secret, only text for a scrub to find

simulated_dir = click.option(
    "--simulated-dir",
    type=options.DIRECTORY,
    help="Directory of the simulated GPUs; the default is that of the running service.",
)
secret = click.option("--secret", default=SECRET, help="Text to write into the memory.")


@click.group()
def simulate() -> None:
    """Inject faults and processes on simulated GPUs.

    The service is not told. It has to find out on its own, as with real GPUs.
    """


def drill(act: Callable[..., str]) -> click.Command:
    """A verb that acts on one simulated GPU. ``act`` returns the sentence to print."""

    @functools.wraps(act)
    def run(gpu: str, simulated_dir: Path | None, run_dir: Path, **extra: Any) -> None:  # noqa: ANN401 - flags of act
        target = find_target(gpu, simulated_dir, run_dir)
        human.say(f"GPU {target.index}: {act(target, **extra)}")

    verb = options.gpu(simulated_dir(options.run_dir(run)))
    return simulate.command(act.__name__.replace("_", "-"), context_settings=ENVIRONMENT)(verb)


@drill
@secret
@click.option("--container", default="simulated-pod", help="The container of the process.")
@click.option(
    "--offset",
    type=SIZE,
    default=0,
    help="Where to write the secret, as in 1MiB; it is also written halfway and at the end.",
)
def occupy(target: DrillTarget, secret: str, container: str, offset: int) -> str:
    """Start a process of a container that uses the GPU."""
    pid = drills.occupy(target.root, target.uuid, secret.encode(), container, offset)
    return f"process {pid} of container {container} uses the GPU; `autoclave simulate release {target.index}` ends it"


@drill
def release(target: DrillTarget) -> str:
    """End the container processes that use the GPU."""
    ended = drills.release(target.root, target.uuid)
    return f"ended {', '.join(map(str, ended))}" if ended else "no process of a container uses the GPU"


@drill
@secret
def zombie(target: DrillTarget, secret: str) -> str:
    """Leave a process behind that belongs to no container.

    It holds the memory open and ignores SIGTERM.
    """
    pid = drills.zombie(target.root, target.uuid, secret.encode())
    return f"process {pid} holds the memory, belongs to no container and ignores SIGTERM; `kill -9 {pid}` ends it"


@drill
@click.option("--size", type=SIZE, default="1MiB", help="How much memory.")
def leak(target: DrillTarget, size: int) -> str:
    """Leak memory: no process holds it, and only a reset frees it."""
    drills.leak(target.root, target.uuid, size)
    return f"{human.size(size)} are leaked: no process holds them, and only a reset frees them"


@drill
@click.argument("code", type=options.IntRange(1, 1000))
@click.option("--count", type=options.IntRange(1), default=1, help="How many at once.")
def xid(target: DrillTarget, code: int, count: int) -> str:
    """Report a driver error event."""
    drills.xid(target.root, target.uuid, code, count)
    return f"the driver reports xid {code}" + (f" {count} times" if count > 1 else "")


@drill
@click.option("--count", type=options.IntRange(1), default=1, help="How many errors.")
def ecc(target: DrillTarget, count: int) -> str:
    """Report uncorrectable memory errors."""
    drills.ecc(target.root, target.uuid, count)
    return f"the GPU reports {quantity(count, 'new uncorrectable memory error')}"


@drill
@click.option("--failed", is_flag=True, help="The remap failed: no spare row is left.")
def remap(target: DrillTarget, failed: bool) -> str:
    """Report a row remap that is pending or failed."""
    drills.remap(target.root, target.uuid, failed=failed)
    return (
        "a row remap failed; its memory cannot be repaired" if failed else "a row remap is pending; a reset applies it"
    )


def _fault(name: str, about: str, act: Callable[[Path, str], None], sentence: str) -> None:
    """A drill that takes no flags and lasts until it is healed."""

    def run(target: DrillTarget) -> str:
        act(target.root, target.uuid)
        return f"{sentence}; {target.healed}"

    run.__name__, run.__doc__ = name, about
    drill(run)


_fault("lost", "Make the GPU fall off the bus.", drills.lose, "the GPU fell off the bus")
_fault("hang", "Make driver calls for the GPU hang.", drills.hang, "driver calls for the GPU hang")
_fault("stall-clears", "Make clears stall.", drills.stall_clears, "clears stall")
_fault("skip-clears", "Make clears write nothing.", drills.skip_clears, "clears write nothing")
_fault("skip-scratch", "Make scratch write nothing.", drills.skip_scratch, "scratch writes nothing")


@drill
@click.option("--how", type=click.Choice(["refused", "slow", "fails"]), default="fails", help="In which way.")
@click.option("--duration", type=DURATION, default="30s", help="How long a slow reset takes.")
def reset_fails(target: DrillTarget, how: str, duration: float) -> str:
    """Make resets refuse, fail, or take long."""
    drills.break_reset(target.root, target.uuid, layout.Resetting(how), duration)
    return f"resets {'fail' if how == 'fails' else f'are {how}'}; {target.healed}"


@drill
@click.option("--offset", type=SIZE, default="0B", help="Which byte, as in 1MiB.")
@click.option("--bit", type=options.IntRange(0, 7), default=0, help="Which bit of it.")
def bad_memory(target: DrillTarget, offset: int, bit: int) -> str:
    """Make one bit of the memory stick at one."""
    drills.bad_memory(target.root, target.uuid, offset, bit)
    return f"bit {bit} of byte {offset} is stuck at one; {target.healed}"


@drill
@click.option("--unit", type=options.IntRange(0, layout.UNITS - 1), default=0, help="Which unit.")
def bad_compute(target: DrillTarget, unit: int) -> str:
    """Make one unit compute wrong results."""
    drills.bad_compute(target.root, target.uuid, unit)
    return f"unit {unit} computes wrong results; {target.healed}"


@drill
@click.argument("kind", type=click.Choice([sign.value for sign in DeviceSign]))
@click.option("--detail", default="so the drill says", help="The text of the sign.")
def sign(target: DrillTarget, kind: str, detail: str) -> str:
    """Report a sign until it is healed.

    The policy (quarantine.signs) says whether the sign leads to a quarantine.
    """
    drills.sign(target.root, target.uuid, AilmentKind(kind), detail)
    return f"the GPU reports {kind}: {detail}; {target.healed}"


@drill
@click.option("--watts", type=options.IntRange(1), default=200, help="The power limit to leave behind.")
def drift(target: DrillTarget, watts: int) -> str:
    """Leave a changed setting behind, as a container could."""
    drills.drift(target.root, target.uuid, watts)
    return f"the power limit is {watts} W now; a scrub restores it"


@drill
@click.option("--celsius", type=options.IntRange(1, 150), default=95, help="The temperature.")
def heat(target: DrillTarget, celsius: int) -> str:
    """Report a high temperature.

    From 90 degrees on, the GPU reports the sign heat. The policy (quarantine.signs) says whether that leads to a
    quarantine.
    """
    drills.heat(target.root, target.uuid, celsius)
    return f"the GPU reports {celsius} degrees Celsius; {target.healed}"


@drill
def heal(target: DrillTarget) -> str:
    """Remove every injected fault. Counters and processes stay."""
    drills.heal(target.root, target.uuid)
    return "no injected fault is left"
