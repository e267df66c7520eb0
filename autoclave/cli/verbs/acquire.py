"""``autoclave acquire`` and ``release``: take GPUs for a job, on a node without a kubelet, and give them back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from autoclave.cli import ENVIRONMENT, options, service_call
from autoclave.cli.output import document, human, text_tables
from ground.errors import NotReady, Reason, Refused
from scrub_api import views


def _group(ctx: click.Context, param: click.Parameter, directory: Path | None) -> int:
    """The id of a control group; 0 if none is named."""
    if directory is None:
        return 0
    if not (directory / "cgroup.controllers").exists():
        raise click.BadParameter(f"{str(directory)!r} is not the directory of a control group of version 2", ctx, param)
    return directory.stat().st_ino


@click.command(context_settings=ENVIRONMENT)
@options.needed_gpus
@options.owner("Who the GPUs are for, such as a job id.")
@click.option(
    "--cgroup",
    type=options.DIRECTORY,
    callback=_group,
    help="The control group of the job, a directory below /sys/fs/cgroup: the fence is open to it alone.",
)
@options.output("text", "json", "yaml")
@options.run_dir
def acquire(gpus: tuple[str, ...], owner: str | None, cgroup: int, output: str, run_dir: Path) -> None:
    """Take clean GPUs for a job, on a node without a kubelet.

    Takes all of the GPUs or none. The GPUs belong to the job until `autoclave release`; the service does nothing to
    them meanwhile. A GPU that is not clean is scrubbed first, within the allocate budget of the policy. Exit code 1
    when a GPU is not clean by then, or is already granted or in use. If the same owner acquires the same GPUs again, it
    gets its present grants, and the GPUs are not scrubbed again. The owner is shown by status, explain and history,
    and in the receipt of the scrub after the job. Nobody verifies it.
    """
    devices = service_call.ask(run_dir, lambda admin: service_call.find(admin, gpus))
    try:
        grants = service_call.ask_for_devices(
            run_dir, lambda scrubber: scrubber.acquire(list(devices), exclusive=True, owner=owner or "", group=cgroup)
        )
    except (Refused, NotReady) as error:
        in_the_way = _explained(run_dir, error.device)
        # The refusal of a GPU that has an owner has its advice.
        if in_the_way is None or (isinstance(error, Refused) and error.reason is Reason.IN_USE):
            raise
        device = in_the_way.device
        why = f" ({note})" if (note := text_tables.describe(device)) else ""
        advice = error.remedies or (f"`autoclave explain {device.argument}` says what to do",)
        raise type(error)(error.reason, f"{error.message}{why}", *advice) from None
    if output != "text":
        document.emit(document.listing("Grant", map(document.fields, grants)), output)
        return
    for grant in grants:
        proof = f"receipt {grant.receipt}" if grant.receipt else "not proven clean, because the policy mode is observe"
        to = f" to {owner}" if owner else ""
        gpu = f"GPU {devices[grant.device].name} ({grant.device})"
        human.say(f"{gpu} is granted{to}: grant {grant.grant}, {proof}")


@click.command(context_settings=ENVIRONMENT)
@options.gpus
@options.owner("Without GPU: all GPUs of this owner. With GPU: refuse the GPU of another owner.")
@click.option("--force", is_flag=True, help="Also take a GPU back from a pod, whose owner is not named.")
@click.option("-q", "--quiet", is_flag=True, help="Do not say that the owner has no GPU.")
@options.output("text", "json", "yaml")
@options.run_dir
def release(gpus: tuple[str, ...], owner: str | None, force: bool, quiet: bool, output: str, run_dir: Path) -> None:
    """Give back the GPUs of a job that has ended.

    The GPUs become dirty and are scrubbed. The policy (evict.leftovers) says what happens to processes that the job
    left behind. While a container uses one of the GPUs, none is given back and the exit code is 1. A GPU that is
    neither granted nor in use stays as it is, and the exit code is 0. A GPU of a pod is left alone, and the exit code
    is 4: Autoclave notices the end of a pod on its own.
    """
    named_some = bool(gpus) or gpus is options.ALL
    if not named_some and owner is None:
        raise click.UsageError("name GPUs, or pass --owner for all GPUs of an owner")

    def named(names: Sequence[str]) -> dict[str, views.DeviceStatus]:
        return service_call.ask(run_dir, lambda admin: service_call.find(admin, names))

    devices = named(gpus) if named_some else {}
    for uuid, device in devices.items():
        if owner is None and device.pod and not force:
            why = f"cannot take back {uuid}: it belongs to the pod {device.pod}"
            raise Refused(Reason.OTHER_OWNER, why, "Autoclave takes it back when the pod has ended, or with --force")
    try:
        released = service_call.ask_for_devices(
            run_dir, lambda scrubber: scrubber.release(list(devices), owner=owner or "")
        )
    except Refused as error:
        refused = _explained(run_dir, error.device)
        if refused is None or error.reason is Reason.OTHER_OWNER:
            raise
        who, remedy = _in_the_way(refused)
        raise Refused(error.reason, f"{error.message}{who}", remedy) from None
    if not named_some and released:
        devices = named(sorted(released))
    if not devices and not quiet:
        human.warn(f"no GPU was acquired for {owner}, so nothing was given back")
    if output != "text":
        items = ({**document.gpu(device), "released": uuid in released} for uuid, device in devices.items())
        document.emit(document.listing("Release", items), output)
        return
    for uuid, device in devices.items():
        result = (
            "is given back" if uuid in released else f"was not held, so nothing was given back; it is {device.state}"
        )
        human.say(f"GPU {device.name} ({uuid}) {result}")


def _in_the_way(refused: views.Explanation) -> tuple[str, str]:
    """Who is in the way of a release, and what to do. The command that was refused is no advice."""
    device = refused.device
    by = ", ".join(map(str, device.holders)) or device.pod
    return by and f" by {by}", refused.before_release or f"`autoclave explain {device.argument}` says more"


def _explained(run_dir: Path, device: str) -> views.Explanation | None:
    """The device of a refusal, explained. Tenants may read refusals, so they name no process and no pod."""
    return service_call.ask(run_dir, lambda admin: admin.explain(device)) if device else None
