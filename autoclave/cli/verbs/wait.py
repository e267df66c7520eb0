"""``autoclave wait``: return when GPUs are clean, or offered to the kubelet."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Collection
from pathlib import Path

import click

from autoclave.cli import DONE, DURATION, ENVIRONMENT, LATE, options, service_call
from autoclave.cli.output import document, human, text_tables
from ground import paths
from ground.documents import units
from ground.errors import NotReady, Reason, Refused, Unreachable
from scrub_api import admin_client, client, views
from scrub_api.device_messages import state_words

GOALS = ("clean", "healthy")


@click.command(context_settings=ENVIRONMENT)
@options.gpus
@options.every
@click.option(
    "--for", "goal", envvar="AUTOCLAVE_FOR", type=click.Choice(GOALS), default="clean",
    help="clean: a receipt proves it; healthy: offered to the kubelet.",
)  # fmt: skip
@click.option(
    "--timeout", type=DURATION, default="5m",
    help="How long to wait at most, as in 90s; 0s asks once.",
)  # fmt: skip
@options.output("text", "json", "yaml")
@options.run_dir
def wait(gpus: tuple[str, ...], every: bool, goal: str, timeout: float, output: str, run_dir: Path) -> int:
    """Wait until GPUs are clean or healthy, all at the same time.

    Starts no scrub. Survives a restart of the service. Exit code 0 when all GPUs are, 5 when the time is over: stderr
    then says for each GPU in which state it is, and why. Exit code 3 when the service does not answer at the beginning
    or at the end. A service that is still starting has until the end of --timeout, unless you set --service-wait.
    Exit code 1 at once when no scrub follows for a GPU, because its policy has `mode: observe`.
    """
    every = every or gpus is options.ALL
    if bool(gpus) is every:
        raise click.UsageError("name GPUs or pass --all" + (", not both" if every else ""))
    began = time.monotonic()  # the start of the service is part of the time
    devices, missing = service_call.ask(
        run_dir, lambda admin: _wait(admin, gpus, goal, timeout, run_dir, began), timeout
    )
    if output != "text":
        items = []
        for device in devices:
            late = missing.get(device.device)
            why = "" if late is None else text_tables.describe(late) or late.why
            reached = {"reached": late is None, "state": late.state if late else "", "why": why}
            items.append(document.gpu(device) | reached)
        document.emit(document.listing("WaitResult", items), output)
    for device in devices:
        if device.device in missing:
            late = missing[device.device]
            why = f"{_unlike(late, goal)}; `autoclave explain {late.argument}` shows the history"
            human.warn(f"waited {units.format_duration(timeout)}: GPU {why}")
        elif output == "text":
            human.say(f"GPU {device.name} ({device.device}) is {goal}")
    return LATE if missing else DONE


async def _wait(
    admin: admin_client.AdminClient, gpus: tuple[str, ...], goal: str, within: float, run_dir: Path, began: float
) -> tuple[tuple[views.DeviceStatus, ...], dict[str, views.DeviceStatus]]:
    """The GPUs, and those that have not reached the goal in time, by UUID and as they are now."""
    devices = (await admin.status(gpus)).devices
    if not devices:
        raise NotReady(Reason.NOT_READY, "cannot wait: the service has found no GPU on this node", "`autoclave doctor`")
    missing = [device for device in devices if not _is(device, goal)]
    if missing and sys.stderr.isatty():
        for device in missing:
            human.warn(f"waiting up to {units.format_duration(within)}: GPU {_unlike(device, goal)}")
    if in_vain := [device for device in missing if goal == "clean" and _is_only_observed(device)]:
        names = [device.argument for device in in_vain]
        why = "not clean, and the service scrubs nothing under `mode: observe`"
        raise Refused(
            Reason.NOT_READY, f"cannot wait for GPU {', '.join(names)}: {why}", f"`autoclave scrub {' '.join(names)}`"
        )
    uuids = [device.device for device in devices]
    try:
        async with asyncio.timeout_at(began + within):
            if missing:
                await _reached(paths.scrubber_socket(run_dir), uuids, goal)
            missing = []
    except TimeoutError:
        missing = [device for device in (await admin.status(uuids)).devices if not _is(device, goal)]
    return devices, {device.device: device for device in missing}


async def _reached(socket: Path, uuids: Collection[str], goal: str) -> None:
    """Return when one list of the service shows all of these devices in the wanted state, also across a restart."""
    reachable = True
    while True:
        try:
            async with client.ScrubberClient(socket) as scrubber:
                async for reported in scrubber.watch():
                    reachable = True
                    if set(uuids) <= {
                        device.uuid
                        for device in reported.devices
                        if (device.healthy if goal == "healthy" else device.clean)
                    }:
                        return
        except (Unreachable, NotReady):
            if reachable:
                human.warn(service_call.RETRYING)
            reachable = False
        await asyncio.sleep(service_call.RETRY)


def _is(device: views.DeviceStatus, goal: str) -> bool:
    return device.healthy if goal == "healthy" else device.state == "clean"


def _is_only_observed(device: views.DeviceStatus) -> bool:
    """Whether the service begins no scrub of the device, and none runs that somebody has begun.

    A probation may still end a quarantine.
    """
    return device.policy_mode == "observe" and device.job is None and device.quarantine is None


def _unlike(device: views.DeviceStatus, goal: str) -> str:
    why = text_tables.describe(device) or device.why
    return f"{device.name} is not {goal}; it is {state_words(device.state)}: {why}"
