"""Autoclave on the real node: service and plugin as processes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from ground import paths
from scrub_api import admin_client, views
from scrubber.core import events as ev
from scrubber.devices.simulated import layout
from scrubber.fence.kernel import fence
from scrubber.ledger import ledger_rows
from scrubber.node import own_cgroup
from tests.cluster import files
from tests.cluster.isolated import RUN, STATE
from tests.cluster.programs import WHOLE, Program, connects, until_ready
from tests.patience import WITHIN
from tests.plugin.live_plugin import STANDING_BY
from tests.pod_groups import roots

Wanted = Callable[[views.DeviceStatus], bool]

GPUS = 4
MEMORY = "16MiB" if WHOLE else "64MiB"  # of each
RUN_DIR = RUN / "autoclave"
DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
SIMULATED = STATE / "autoclave/simulated"
POLICY = STATE / "policy.yaml"
CDI = RUN / "cdi"
_PROGRAM = [sys.executable, "-m", "autoclave"]


# Where the fence stands, and GPUs are device nodes; None on a node without control groups of version 2.
ROOT_OF_FENCE = roots().get("second")


class Operator:
    """What a person asks the scrub service of the node, and awaits."""

    def __init__(self, run_dir: Path, fence: str | None) -> None:
        """``run_dir``: of the service. ``fence``: the mode of its fence; None: no policy names one."""
        self._socket = paths.admin_socket(run_dir)
        self._fence = fence if ROOT_OF_FENCE is not None else None

    def _policy(self, **defaults: object) -> str:
        """The policy of each node, with more defaults. A whole machine is slow."""
        patience = {"timeouts": 10} if WHOLE else {}
        fence = {"fence": {"mode": self._fence}} if self._fence is not None else {}
        return json.dumps({"name": "cluster", "defaults": {**patience, **fence, **defaults}})

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

    async def closing(self, index: int) -> ev.TenancyClosed:
        """What the closing receipt of the last tenancy of a device says, as soon as the device is clean."""
        await self.devices(lambda device: device.state == "clean", index)
        events = [ledger_rows.decode(row.kind, row.body) for row in await self.history(str(index))]
        return [event for event in events if isinstance(event, ev.TenancyClosed)][-1]

    async def clean(self) -> tuple[views.DeviceStatus, ...]:
        """All devices, as soon as they are clean and offered."""
        return await self.devices(lambda device: device.state == "clean" and device.healthy)

    async def ready(self) -> None:
        """Return when all devices are clean, behind a fence in the mode of this run."""
        await self.clean()
        if self._fence is not None:
            await self.devices(lambda device: device.fence == self._fence)

    async def refused(self, index: int, times: int) -> None:
        """Return when the service has been told of so many refusals of a device since its start."""
        await self.devices(lambda device: sum(opener.refused for opener in device.openers) >= times, index)


class Autoclave(Operator):
    """The scrub service and the device plugin of the node."""

    def __init__(self, logs: Path, memory: str = MEMORY, *, fence: str | None = None) -> None:
        """Nothing is started. ``memory``: of each GPU. ``fence``: its mode, unless a policy names one."""
        super().__init__(RUN_DIR, fence)
        self._logs = logs
        CDI.mkdir(exist_ok=True)
        command: list[str | Path] = [
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
            *(() if ROOT_OF_FENCE is None else ("--cgroup-root", ROOT_OF_FENCE)),
        ]
        self.service = Program("autoclave-scrubber", command, logs)
        self.plugin = Program("autoclave-plugin", [*_PROGRAM, "plugin"], logs)

    def rule(self, **defaults: object) -> None:
        """Another policy; without one, that of every node."""
        POLICY.write_text(self._policy(**defaults))

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

    def uninstall(self) -> None:
        """End both, and take the fence away: it may refuse for some time after the service has ended."""
        self.down()
        if ROOT_OF_FENCE is not None:
            fence.take_down(ROOT_OF_FENCE)

    def clear_away(self) -> None:
        """The same, and take away the other things that a service leaves: its loop devices and its control group."""
        self.uninstall()
        for place in layout.places(SIMULATED):
            layout.remove_node(place)
        with suppress(fence.FenceError):  # in a namespace of its own, where the groups go with it
            own = own_cgroup.find(fence.root())
            for left in own.glob("autoclave") if own is not None else ():
                left.rmdir()

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
