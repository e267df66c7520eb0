"""``autoclave wait``: return when GPUs are clean, or offered to the kubelet."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import click

from autoclave.cli import DONE, ENVIRONMENT, LATE, document, human, options, service_call, status_view, table
from scrubber.api import client
from scrubber.core import views
from scrubber.ground import paths
from scrubber.ground.device_messages import AdvertisedDevice
from scrubber.ground.documents import units
from scrubber.ground.errors import NotReady, Reason, Unreachable


@dataclass(frozen=True, slots=True)
class Goal:
    """What to wait for: how a message of the service shows it, and how a status does."""

    name: str
    advertised: Callable[[AdvertisedDevice], bool]
    shown: Callable[[views.DeviceStatus], bool]


GOALS = {
    goal.name: goal
    for goal in (
        Goal("clean", lambda device: device.clean, lambda device: device.state == "clean"),
        Goal("healthy", lambda device: device.healthy, lambda device: device.healthy),
    )
}


@click.command(context_settings=ENVIRONMENT)
@options.gpus
@click.option("--all", "every", is_flag=True, envvar="AUTOCLAVE_ALL", help="All GPUs of this node.")
@click.option(
    "--for", "goal", envvar="AUTOCLAVE_FOR", type=click.Choice(list(GOALS)), default="clean",
    help="clean: a receipt proves it; healthy: offered to the kubelet.",
)  # fmt: skip
@click.option(
    "--timeout", type=options.Parsed("duration", units.parse_duration), default="5m",
    help="How long to wait at most, as in 90s; 0s asks once.",
)  # fmt: skip
@options.output("text", "json", "yaml")
@options.run_dir
def command(gpus: tuple[str, ...], every: bool, goal: str, timeout: float, output: str, run_dir: Path) -> int:
    """Wait until GPUs are clean or healthy, all at the same time.

    Starts no scrub. Survives a restart of the service. Exit code 0 when all GPUs are, 5 when the time is over: stderr
    then says for each GPU in which state it is, and why. Exit code 3 when the service does not answer at the beginning
    or at the end.
    """
    if bool(gpus) is every:
        raise click.UsageError("name GPUs or pass --all, not both")
    devices, missing = service_call.ask(run_dir, lambda admin: _wait(admin, gpus, GOALS[goal], timeout, run_dir))
    if output != "text":
        items = [_item(device, missing) for device in devices]
        document.emit(document.listing("WaitResult", items), output)
    for device in devices:
        if device.device in missing:
            why = f"{_unlike(missing[device.device], goal)}; `autoclave explain {device.name}` shows the history"
            _say(f"waited {units.format_duration(timeout)}: GPU {why}")
        elif output == "text":
            click.echo(human.printable(f"GPU {device.name} ({device.device}) is {goal}"))
    return LATE if missing else DONE


async def _wait(
    admin: client.AdminClient, gpus: tuple[str, ...], goal: Goal, within: float, run_dir: Path
) -> tuple[tuple[views.DeviceStatus, ...], dict[str, views.DeviceStatus]]:
    """The GPUs, and those that have not reached the goal in time, by UUID and as they are now."""
    devices = (await admin.status(gpus)).devices
    if not devices:
        raise NotReady(Reason.NOT_READY, "cannot wait: the service has found no GPU on this node")
    missing = [device for device in devices if not goal.shown(device)]
    if missing and sys.stderr.isatty():
        for device in missing:
            _say(f"waiting up to {units.format_duration(within)}: GPU {_unlike(device, goal.name)}")
    uuids = [device.device for device in devices]
    try:
        async with asyncio.timeout(within):
            if missing:
                await _reached(paths.scrubber_socket(run_dir), uuids, goal)
            missing = []
    except TimeoutError:
        missing = [device for device in (await admin.status(uuids)).devices if not goal.shown(device)]
    return devices, {device.device: device for device in missing}


async def _reached(socket: Path, uuids: Collection[str], goal: Goal) -> None:
    """Return when one list of the service shows all of these devices in the wanted state, also across a restart."""
    reachable = True
    while True:
        try:
            async with client.ScrubberClient(socket) as scrubber:
                async for adverts in scrubber.watch():
                    reachable = True
                    if set(uuids) <= {device.uuid for device in adverts.devices if goal.advertised(device)}:
                        return
        except (Unreachable, NotReady):
            if reachable:
                _say(status_view.UNREACHABLE)
            reachable = False
        await asyncio.sleep(status_view.RETRY)


def _unlike(device: views.DeviceStatus, goal: str) -> str:
    return f"{device.name} is not {goal}; it is {device.state}: {table.note(device) or device.why}"


def _item(device: views.DeviceStatus, missing: dict[str, views.DeviceStatus]) -> dict[str, object]:
    late = missing.get(device.device)
    why = "" if late is None else table.note(late) or late.why
    about = {"device": device.device, "index": device.index, "slice": device.slice}
    return {**about, "reached": late is None, "state": late.state if late else "", "why": why}


def _say(text: str) -> None:
    click.echo(human.printable(f"autoclave: {text}"), err=True)
