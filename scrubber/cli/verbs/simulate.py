"""``autoclave simulate``: drills. What happens here happens to simulated GPUs only."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from policies import units
from policies.health import Symptom
from scrubber.cli import drill_targets, human, options
from scrubber.core.model import AilmentKind
from scrubber.devices.simulated import chip, documents, drills, tenants

DURATION = options.Parsed("duration", units.parse_duration)
SIZE = options.Parsed("size", units.parse_size)
SECRET = "the last tenant was here"  # noqa: S105 - nobody's, but for a drill to be found

simulated_dir = click.option(
    "--simulated-dir", type=options.DIRECTORY, help="Where simulated GPUs live; the running service says it otherwise."
)
secret = click.option("--secret", default=SECRET, show_default=True, help="What it leaves in the memory.")


@click.group()
def command() -> None:
    """Cause things on simulated GPUs.

    The service is not told: it has to find out, as it would with real ones.
    """


def drill(act: Callable[..., str]) -> click.Command:
    """A verb that acts on one simulated GPU and answers with what a person should know then."""

    @functools.wraps(act)
    def run(gpu: str, simulated_dir: Path | None, run_dir: Path, **extra: Any) -> None:  # noqa: ANN401 - flags of act
        target = drill_targets.find(gpu, simulated_dir, run_dir)
        click.echo(human.printable(f"GPU {target.index}: {act(target, **extra)}"))

    verb = options.gpu(simulated_dir(options.run_dir(run)))
    return command.command(act.__name__.replace("_", "-"), context_settings=options.ENVIRONMENT)(verb)


@drill
@secret
@click.option("--container", default="tenant", show_default=True, help="Who the process belongs to.")
@click.option(
    "--offset", type=SIZE, default=0, help="Where the secret is written, as in 1MiB; also halfway and at the end."
)
def occupy(target: drill_targets.DrillTarget, secret: str, container: str, offset: int) -> str:
    """Start a process of a container that uses the GPU."""
    pid = tenants.occupy(target.root, target.uuid, secret.encode(), container, offset)
    return f"process {pid} of container {container} uses it; `autoclave simulate release {target.index}` ends it"


@drill
def release(target: drill_targets.DrillTarget) -> str:
    """End the container processes that use the GPU."""
    ended = tenants.release(target.root, target.uuid)
    return f"ended {', '.join(map(str, ended))}" if ended else "no process of a container uses it"


@drill
@secret
def zombie(target: drill_targets.DrillTarget, secret: str) -> str:
    """Leave a process behind that nobody owns.

    It belongs to no container, holds the memory open and ignores SIGTERM.
    """
    pid = tenants.zombie(target.root, target.uuid, secret.encode())
    return f"process {pid} holds its memory, belongs to nobody and ignores SIGTERM; `kill -9 {pid}` ends it"


@drill
@click.option("--size", type=SIZE, default="1MiB", show_default=True, help="How much.")
def leak(target: drill_targets.DrillTarget, size: int) -> str:
    """Take memory that no process has, until the next reset."""
    drills.leak(target.root, target.uuid, size)
    return f"{human.size(size)} are taken and no process has them; a reset brings them back"


@drill
@click.argument("code", type=click.IntRange(1, 1000))
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="How many at once.")
def xid(target: drill_targets.DrillTarget, code: int, count: int) -> str:
    """Report a driver error event."""
    drills.xid(target.root, target.uuid, code, count)
    return f"the driver reports xid {code}" + (f" {count} times" if count > 1 else "")


@drill
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="How many.")
def ecc(target: drill_targets.DrillTarget, count: int) -> str:
    """Count uncorrectable memory errors."""
    drills.ecc(target.root, target.uuid, count)
    return f"{count} more uncorrectable memory errors were counted"


@drill
@click.option("--failed", is_flag=True, help="No spare row is left: it failed for good.")
def remap(target: drill_targets.DrillTarget, failed: bool) -> str:
    """Have a row remap pending, or failed."""
    drills.remap(target.root, target.uuid, failed=failed)
    return (
        "a row remap failed; its memory cannot be repaired" if failed else "a row remap is pending; a reset applies it"
    )


@drill
def lost(target: drill_targets.DrillTarget) -> str:
    """Let the GPU fall off the bus."""
    drills.lose(target.root, target.uuid)
    return f"it fell off the bus; {_healed_by(target)}"


@drill
def hang(target: drill_targets.DrillTarget) -> str:
    """Let driver calls for the GPU never return."""
    drills.hang(target.root, target.uuid)
    return f"driver calls for it do not return; {_healed_by(target)}"


@drill
@click.option(
    "--how", type=click.Choice(["refused", "slow", "fails"]), default="fails", show_default=True, help="In which way."
)
@click.option("--duration", type=DURATION, default="30s", show_default=True, help="How long a slow one takes.")
def reset_fails(target: drill_targets.DrillTarget, how: str, duration: float) -> str:
    """Let resets be refused, fail, or take long."""
    drills.break_reset(target.root, target.uuid, documents.Resetting(how), duration)
    return f"resets are {how}; {_healed_by(target)}"


@drill
@click.option("--offset", type=SIZE, default="0B", show_default=True, help="Which byte, as in 1MiB.")
@click.option("--bit", type=click.IntRange(0, 7), default=0, show_default=True, help="Which bit of it.")
def bad_memory(target: drill_targets.DrillTarget, offset: int, bit: int) -> str:
    """Let a memory cell always read one."""
    drills.bad_memory(target.root, target.uuid, offset, bit)
    return f"bit {bit} of byte {offset} is stuck at one; {_healed_by(target)}"


@drill
def stall_clears(target: drill_targets.DrillTarget) -> str:
    """Let clears go nowhere."""
    drills.stall_clears(target.root, target.uuid)
    return f"clears go nowhere; {_healed_by(target)}"


@drill
def skip_clears(target: drill_targets.DrillTarget) -> str:
    """Let clears report success and write nothing."""
    drills.skip_clears(target.root, target.uuid)
    return f"clears report success and write nothing; {_healed_by(target)}"


@drill
def skip_scratch(target: drill_targets.DrillTarget) -> str:
    """Let overwriting the memory on the chip do nothing.

    It reports success all the same.
    """
    drills.skip_scratch(target.root, target.uuid)
    return f"overwriting the memory on the chip reports success and does nothing; {_healed_by(target)}"


@drill
@click.option("--unit", type=click.IntRange(0, chip.UNITS - 1), default=0, show_default=True, help="Which unit.")
def bad_compute(target: drill_targets.DrillTarget, unit: int) -> str:
    """Let a unit compute wrongly."""
    drills.bad_compute(target.root, target.uuid, unit)
    return f"unit {unit} computes wrongly; {_healed_by(target)}"


@drill
@click.argument("kind", type=click.Choice([symptom.value for symptom in Symptom]))
@click.option("--detail", default="so the drill says", show_default=True, help="What is told of it.")
def sign(target: drill_targets.DrillTarget, kind: str, detail: str) -> str:
    """Tell of something wrong, for as long as it is not healed.

    Whether it makes the device sick is for the policy to say: quarantine.signs.
    """
    drills.sign(target.root, target.uuid, AilmentKind(kind), detail)
    return f"{kind} is told of it: {detail}; {_healed_by(target)}"


@drill
@click.option(
    "--watts", type=click.IntRange(1), default=200, show_default=True, help="The power limit that is left behind."
)
def drift(target: drill_targets.DrillTarget, watts: int) -> str:
    """Leave a changed setting behind, as a tenant might."""
    drills.drift(target.root, target.uuid, watts)
    return f"its power limit is {watts} W now; a scrub brings it back"


@drill
@click.option("--celsius", type=click.IntRange(1, 150), default=95, show_default=True, help="How hot.")
def heat(target: drill_targets.DrillTarget, celsius: int) -> str:
    """Let the GPU say that it is hot.

    Figures show it, and nothing is judged by it: `simulate sign GPU heat` is what a policy can act on.
    """
    drills.heat(target.root, target.uuid, celsius)
    return f"it says that it is at {celsius} degrees Celsius; {_healed_by(target)}"


@drill
def heal(target: drill_targets.DrillTarget) -> str:
    """Take every fault back. What was counted stays, and so do processes."""
    drills.heal(target.root, target.uuid)
    return "nothing is broken on purpose any more"


def _healed_by(target: drill_targets.DrillTarget) -> str:
    return f"`autoclave simulate heal {target.index}` ends it"
