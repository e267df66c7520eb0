"""Finds the simulated GPU of a drill, through the running service or in a directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autoclave.cli import service_call
from scrubber.core.model import DeviceInfo
from scrubber.devices.simulated import layout
from scrubber.ground.errors import InvalidRequest, Reason, Refused


@dataclass(frozen=True, slots=True)
class DrillTarget:
    """A simulated GPU and its directory."""

    root: Path
    uuid: str
    index: int


def find(gpu: str, simulated_dir: Path | None, run_dir: Path) -> DrillTarget:
    """The GPU with this name."""
    if simulated_dir is not None:
        found = _match(gpu, [place.info() for place in layout.places(simulated_dir)], simulated_dir)
        return DrillTarget(simulated_dir, found.uuid, found.index)
    status = service_call.ask(run_dir, lambda admin: admin.status([gpu]))
    if not status.service.simulated_dir:
        raise Refused(
            Reason.INVALID_REQUEST,
            f"cannot simulate on backend {status.service.backend}: its GPUs are real;"
            " start a service with --backend simulated for drills",
        )
    device = status.devices[0]
    return DrillTarget(Path(status.service.simulated_dir), device.device, device.index)


def _match(gpu: str, infos: list[DeviceInfo], root: Path) -> DeviceInfo:
    """By index, UUID, or unique UUID prefix, as the service does."""
    found = [it for it in infos if gpu == str(it.index) or (gpu and it.uuid.lower().startswith(gpu.lower()))]
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"{it.index} ({it.uuid})" for it in found or infos) or "nothing"
    why = f"it could be any of {names}" if found else f"there is {names} in {root}"
    raise InvalidRequest(f"cannot find GPU {gpu}: {why}")
