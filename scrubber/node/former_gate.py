"""What a version with a create gate has left on the node, and when it goes.

That version wrote a CDI specification. Each device in it made the container runtime run a program, and the plugin
named the device in its answers. The kubelet keeps an answer as long as its pod is on the node, also over a reboot, and
the runtime creates no container of that pod without the specification. So each start of the service makes the devices
in it set an environment variable and nothing else, and a device stays in it:

* a GPU, while the kubelet's checkpoint has an answer that names it, or cannot be read;
* a GPU of a claim, until somebody else has the GPU. After a reboot nothing else shows that the claim is over.

With the last device, the specification goes, and the folder with the program. Only programs from before 0.1.0 wrote
them: one release later, this module can leave, and with it the chart's mount `former-gate`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ground import log, private_files, public_names
from ground.documents import strict_json
from scrubber.core.record import Record
from scrubber.node import assignments

logger = log.get("former create gate")

KIND = f"{public_names.DOMAIN}/gate"
SPECIFICATION = "etc/cdi/autoclave-gate.json"  # on the host
PROGRAMS = "gate"  # in the state directory
OF_CLAIM = "."  # between the GPU and the UID of the claim
LOOKS_EVERY = 60.0  # seconds


class FormerGate:
    """The specification and the program of a create gate on this node, if there are any."""

    def __init__(self, host_root: Path, state_dir: Path, kubelet_dir: Path) -> None:
        """``kubelet_dir``: where the kubelet's checkpoint is."""
        self._file = host_root / SPECIFICATION
        self._programs = state_dir / PROGRAMS
        self._kubelet_dir = kubelet_dir
        self._fault = ""

    async def leave(self, records: Callable[[], Mapping[str, Record]]) -> None:
        """Look again from time to time, until nothing is left."""
        left = True
        while left:
            await asyncio.sleep(LOOKS_EVERY)
            left = await asyncio.to_thread(self.is_left, records())

    def is_left(self, records: Mapping[str, Record]) -> bool:
        """Remove what no pod needs any more. Whether something has to stay."""
        try:
            if not self._file.exists():
                return False
            specification: Any = strict_json.parse(private_files.content(self._file))
            names = [str(device["name"]) for device in specification["devices"]]
            answers = _answers(self._kubelet_dir)
            needed = [name for name in names if _is_needed(name, answers, records)]
            if needed:
                self._disarm(specification, needed)
                return True
            shutil.rmtree(self._programs, ignore_errors=True)
            self._file.unlink()
            logger.info("the create gate of an older version is removed", specification=str(self._file))
        except (OSError, ValueError, LookupError, TypeError) as error:
            if str(error) != self._fault:
                self._fault = str(error)
                logger.warning("cannot remove the create gate of an older version",
                               specification=str(self._file), error=self._fault)  # fmt: skip
            return True
        return False

    def _disarm(self, before: object, names: Iterable[str]) -> None:
        """Write the specification with these devices, each of which sets an environment variable only."""
        edits = {"env": ["AUTOCLAVE_GATE=off"]}
        devices = [{"name": name, "containerEdits": edits} for name in names]
        specification = {"cdiVersion": "0.5.0", "kind": KIND, "devices": devices}
        if specification != before:
            content = json.dumps(specification, indent=1).encode()
            private_files.replace(self._file, content, private_files.READABLE_FILE)


def _is_needed(name: str, answers: bytes | None, records: Mapping[str, Record]) -> bool:
    device, of_claim, claim = name.partition(OF_CLAIM)
    if not of_claim:
        return answers is None or f"{KIND}={device}".encode() in answers
    record = records.get(device)
    return record is None or not record.tenancy.acquired_by or record.tenancy.acquired_for(claim)


def _answers(kubelet_dir: Path) -> bytes | None:
    """All answers of plugins that the kubelet keeps; None if they cannot be read."""
    try:
        document: Any = json.loads((kubelet_dir / assignments.NAME).read_bytes())
        entries = document["Data"]["PodDeviceEntries"] or ()
        return b"\n".join(base64.b64decode(entry["AllocResp"] or "", validate=True) for entry in entries)
    except (OSError, ValueError, LookupError, TypeError):
        return None
