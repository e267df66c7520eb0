"""Autoclave on the real node: service and plugin as processes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from ground import paths
from scrub_api import admin_client, views
from scrubber.devices.simulated import layout
from scrubber.fence import fence
from scrubber.node import cgroups
from tests.cluster import files
from tests.cluster.isolated import RUN, STATE
from tests.cluster.programs import WHOLE, Program, connects, until_ready
from tests.create_gate.programs import SOURCE, compiled
from tests.patience import WITHIN
from tests.plugin.live_plugin import STANDING_BY
from tests.pod_groups import roots

Wanted = Callable[[views.DeviceStatus], bool]

GPUS = 4
RUN_DIR = RUN / "autoclave"
DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
SIMULATED = STATE / "autoclave/simulated"
POLICY = STATE / "policy.yaml"
CDI = RUN / "cdi"
_PROGRAM = [sys.executable, "-m", "autoclave"]


def _fenced() -> tuple[str | Path, ...]:
    """The fence, and GPUs that are device nodes, where this node has control groups of version 2."""
    second = roots().get("second")
    return () if second is None else ("--cgroup-root", second)


class Operator:
    """What a person asks the scrub service of the node, and awaits."""

    def __init__(self, run_dir: Path) -> None:
        """``run_dir``: of the service."""
        self._socket = paths.admin_socket(run_dir)

    async def devices(self, wanted: Wanted, index: int | None = None) -> tuple[views.DeviceStatus, ...]:
        """All devices or one, as soon as each of them is as wanted."""
        names = [] if index is None else [str(index)]
        seen = 0
        async with asyncio.timeout(WITHIN), admin_client.AdminClient(self._socket) as admin:
            while True:
                status = await admin.status(names, newer_than=seen, wait=10 if seen else 0, timeout=WITHIN)
                if all(map(wanted, status.devices)):
                    return status.devices
                seen = status.service.ledger_rows

    async def quarantine(self, device: str) -> None:
        """Take a device out of service."""
        async with admin_client.AdminClient(self._socket) as admin:
            await admin.quarantine(device, "for the test", "the test", timeout=WITHIN)

    async def reinstate(self, device: str) -> None:
        """Test a quarantined device now."""
        async with admin_client.AdminClient(self._socket) as admin:
            async for _ in admin.reinstate([device], "healed", "the test"):
                pass

    async def history(self, device: str) -> tuple[views.HistoryEntry, ...]:
        """The rows of the ledger about a device, newest last."""
        async with admin_client.AdminClient(self._socket) as admin:
            return await admin.history(device)

    async def clean(self) -> tuple[views.DeviceStatus, ...]:
        """All devices, as soon as they are clean and offered."""
        return await self.devices(lambda device: device.state == "clean" and device.healthy)


class Autoclave(Operator):
    """The scrub service and the device plugin of the node."""

    def __init__(self, logs: Path, memory: str = "64MiB") -> None:
        """Nothing is started. ``memory``: of each GPU."""
        super().__init__(RUN_DIR)
        self._logs = logs
        CDI.mkdir(exist_ok=True)
        self._unfenced: list[str | Path] = [
            *_PROGRAM,
            *("scrubber", "--backend", "simulated", "--simulated-gpus", str(GPUS)),
            *("--simulated-memory", memory),
            *(
                "--sight",
                "namespace",
                "--state-dir",
                STATE / "autoclave",
                "--policy",
                POLICY,
                "--simulated-cdi-dir",
                CDI,
            ),
            *("--create-gate", compiled(STATE / "autoclave-gate", SOURCE), "--gate-cdi-dir", CDI),
        ]
        self.service = Program("autoclave-scrubber", [*self._unfenced, *_fenced()], logs)
        self.plugin = Program("autoclave-plugin", [*_PROGRAM, "plugin"], logs)

    def rule(self, **defaults: object) -> None:
        """Another policy; without one, that of every node. A whole machine is slow."""
        patience = {"timeouts": 10} if WHOLE else {}
        POLICY.write_text(json.dumps({"name": "cluster", "defaults": {**patience, **defaults}}))

    @contextmanager
    def in_files(self) -> Iterator[None]:
        """The memory of the GPUs is in files, which a pod can mount, and there is no fence. Neither program runs."""
        self.down()
        self._remove_nodes()
        fenced, self.service.command = self.service.command, self._unfenced
        try:
            yield
        finally:
            self.down()
            self.service.command = fenced

    def serve(self) -> None:
        """Start the service. Return when it answers."""
        self.service.start()
        until_ready(self.service, lambda: connects(paths.admin_socket(RUN_DIR)))

    async def up(self) -> None:
        """Start what does not run. Return when the service answers and the plugin has registered."""
        if self.service.process is None:
            self.serve()
        if self.plugin.process is None:
            async with registered(self.plugin.log):
                self.plugin.start()

    def down(self) -> None:
        """End both."""
        for program in (self.plugin, self.service):
            if program.process is not None:
                program.end()

    def clear_away(self) -> None:
        """End both, and take away what a service leaves: its fence, its loop devices, and its control group."""
        self.down()
        self._remove_nodes()
        with suppress(fence.FenceError):  # in a namespace of its own, where the groups go with it
            own = cgroups.own_group(fence.root())
            for left in own.glob("autoclave") if own is not None else ():
                left.rmdir()

    @staticmethod
    def _remove_nodes() -> None:
        """Make the memory of each GPU a file again. The fence goes first: it may refuse who detaches a device."""
        if "second" in roots():
            fence.take_down(roots()["second"])
        for place in layout.places(SIMULATED):
            layout.remove_node(place)

    def floor(self) -> Program:
        """A plugin that does nothing, for the same GPUs."""
        ids = ",".join(place.info().uuid for place in layout.places(SIMULATED))
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "demo.standins.do_nothing_plugin",
            "--directory",
            DEVICE_PLUGINS,
            "--devices",
            ids,
        ]
        return Program("floor", command, self._logs)


@asynccontextmanager
async def registered(log: Path) -> AsyncIterator[None]:
    """Leave when the plugin with this log has registered once more, and has sent its list."""

    def counts() -> tuple[int, int]:
        text = log.read_text() if log.exists() else ""
        return text.count('"event": "registered"'), text.count('"event": "list"')

    registrations, lists = counts()
    yield
    await files.until(log, lambda: counts()[0] > registrations and counts()[1] > lists)


async def stand_by(present: Program) -> Program:
    """Start one more like this plugin. Return when it waits for the end of the present one."""
    standby = Program(f"{present.name}-2", [*present.command], present.logs)
    standby.start()
    await files.until(standby.log, lambda: STANDING_BY in standby.log.read_text())
    return standby


def specify(name: str, gpus: dict[str, tuple[int, Path]]) -> None:
    """Write a CDI specification of GPUs that Autoclave does not have. ``gpus``: index and memory of each."""

    def device(uuid: str, index: int, memory: Path) -> dict[str, Any]:
        mount = {"hostPath": str(memory), "containerPath": f"/dev/simulated-gpu{index}", "options": ["bind", "rw"]}
        return {"name": uuid, "containerEdits": {"mounts": [mount]}}

    devices = [device(uuid, *gpu) for uuid, gpu in gpus.items()]
    document = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices}
    (CDI / f"{name}.json").write_text(json.dumps(document))
