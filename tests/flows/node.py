"""A node to tell stories on: pods by name, GPUs by index, and a runtime that looks before anything starts."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
from asyncinotify import Inotify, Mask

from demo import groups
from demo.containers import ContainerRunner, mark
from demo.installation import RESOURCE
from demo.programs import ServiceProgram
from demo.stage import Stage, halfway
from demo.standins import endpoint
from demo.standins.journal import Call
from demo.standins.kubelet import Kubelet
from demo.standins.pods import Container, Phase, Pod
from demo.standins.runtime import Devices
from plugin.kubelet_api import deviceplugin_pb2_grpc
from scrub_api import views
from scrubber.devices.simulated import drills, layout
from tests import foreign_processes
from tests.patience import WITHIN

BRISK = "{paths: {first_look: fast}, clear: {passes: zero}}"


def brisk(*words: str) -> str:
    """The same policy, and these words more."""
    return f"{{{', '.join([BRISK[1:-1], *words])}}}"


WATCHES = "fence: {mode: watch}"  # as on a node whose kernel keeps no pod off
UNHELD = brisk(WATCHES)


class Watched(ContainerRunner):
    """Looks into every device's memory and chip just before a container starts: what is there must be its pod's."""

    def __init__(self, simulated: Path) -> None:
        super().__init__(simulated)
        self.leaks: list[str] = []

    def look(self, pod: Pod, container: Container, devices: Devices) -> None:
        for uuid in (uuid for ids in devices.values() for uuid in ids):
            place = layout.find(self._simulated, uuid)
            found = (place.memory.read_bytes() + place.chip.read_bytes()).replace(b"\0", b"")
            if found.replace(mark(pod.uid).encode(), b""):
                self.leaks.append(f"{container.name} of {pod.name} ({pod.uid}) finds {found[:80]!r} on {uuid}")


@dataclass
class Node:
    """One node and its pods."""

    stage: Stage
    pods: dict[str, Pod] = field(default_factory=dict)

    @property
    def kubelet(self) -> Kubelet:
        return self.stage.kubelet

    async def up(self) -> None:
        """Everything runs, every GPU is clean."""
        await self.stage.start()
        await self.clean()
        await self.stage.start_node()
        await self.offered(self.stage.gpus)

    def rule(self, policy: str) -> None:
        """Write another policy into the file that the service reads."""
        Path(self.stage.policy).write_text(f"name: other\ndefaults: {policy}\n")

    # -- pods

    def pod(self, name: str, *containers: Container, gpus: int = 1) -> Pod:
        """A new pod, of one app container unless others are named."""
        self.pods[name] = Pod(name, containers) if containers else Pod.of(name, {RESOURCE: gpus})
        return self.pods[name]

    async def run(self, name: str, *containers: Container, gpus: int = 1) -> Pod:
        """A pod from its admission to its running containers; anything else fails the test."""
        pod = self.pod(name, *containers, gpus=gpus)
        status = await self.kubelet.run(pod)
        assert status.phase is Phase.RUNNING, f"{name}: {status.message or self.waiting(pod)}"
        return pod

    def waiting(self, pod: Pod) -> str:
        """The reasons why the containers of a pod do not run."""
        return "; ".join(status.message for status in pod.statuses.values() if status.message)

    def gpu(self, pod: Pod, container: str = "main") -> str:
        """The one GPU that a container was given."""
        [uuid] = self.kubelet.held(pod)[container][RESOURCE]
        return uuid

    # -- GPUs

    def memory(self, uuid: str) -> bytes:
        """The bytes in the memory of a GPU, without zeros."""
        return layout.find(self.stage.simulated, uuid).memory.read_bytes().replace(b"\0", b"")

    async def status(self, uuid: str) -> views.DeviceStatus:
        """What the service says of a GPU."""
        async with self.stage.admin() as admin:
            return (await admin.status([uuid])).devices[0]

    async def history(self, uuid: str, kind: str) -> list[views.HistoryEntry]:
        """The rows of the ledger of one kind."""
        async with self.stage.admin() as admin:
            return [entry for entry in await admin.history(uuid) if entry.kind == kind]

    async def scrubs(self, uuid: str) -> int:
        """How often a GPU was proven clean."""
        return len(await self.history(uuid, "scrub-passed"))

    async def reach(self, uuid: str, wanted: Callable[[views.DeviceStatus], bool]) -> views.DeviceStatus:
        """Wait until the status of a GPU is as wanted, and return the status."""
        status = await self.stage.settled(self.stage.uuids.index(uuid), wanted, WITHIN)
        assert wanted(status), f"{uuid} is {status.state}: {status.why} {status.setback}"
        return status

    async def clean(self, *uuids: str) -> None:
        """These GPUs, or all, are clean."""
        for uuid in uuids or self.stage.uuids:
            await self.reach(uuid, lambda device: device.state == "clean")

    async def leave(self, pod: Pod) -> str:
        """Delete a pod; whatever scrub follows stands still until ``heal``. Its GPU."""
        uuid = self.gpu(pod)
        self.stall(uuid)
        await self.kubelet.delete(pod)
        return uuid

    def stall(self, uuid: str) -> None:
        """Let the scrubs of a GPU stand still until ``heal``."""
        drills.stall_clears(self.stage.simulated, uuid)

    async def job(self, uuid: str) -> str:
        """The job that stands still in the middle of a clear, as soon as it does."""
        status = await self.reach(uuid, halfway)
        assert status.job is not None
        return status.job.id

    def heal(self, uuid: str) -> None:
        """Nothing is broken any more."""
        drills.heal(self.stage.simulated, uuid)

    async def a_round(self, spare: str) -> None:
        """Return when the service has looked after every GPU once more, told by what it does about the spare one."""
        seen = len(await self.history(spare, "soiled"))
        async with self.foreign_process(spare), asyncio.timeout(WITHIN):
            while len(await self.history(spare, "soiled")) == seen:
                await self.reach(spare, lambda device: device.state != "clean")
        await self.clean(spare)  # begun by a later round: that one is over for the other GPUs, too

    @asynccontextmanager
    async def foreign_process(
        self, uuid: str, container: str = "", secret: bytes = b""
    ) -> AsyncIterator[foreign_processes.ForeignProcess]:
        """A process on a GPU that nobody here has started there: of this container, or of none."""
        one = foreign_processes.ended(await asyncio.to_thread(self.stage.occupy, uuid, container, secret))
        it = one.__enter__()
        try:
            yield it
        finally:
            await asyncio.to_thread(one.__exit__, None, None, None)

    async def program(self, *command: str | Path) -> asyncio.subprocess.Process:
        """A program of the host that no kubelet started, with pipes to it. A GPU that it opens was not given to it."""
        top = self.stage.groups
        before = () if top is None else groups.inside(groups.of_process(top, ""))
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*before, *command, stdin=pipe, stdout=pipe)

    async def short_use(self, uuid: str, secret: bytes = b"") -> None:
        """A program of the host opens the memory of a GPU, writes this, and ends at once."""
        memory = layout.find(self.stage.simulated, uuid).memory
        user = await self.program("dd", f"of={memory}", "conv=notrunc", "status=none")
        await user.communicate(secret)
        assert user.returncode == 0

    # -- what the kubelet knows

    async def offered(self, count: int) -> None:
        """The kubelet may hand out so many."""
        await self.kubelet.until(lambda: self.kubelet.allocatable.get(RESOURCE) == count, WITHIN)

    async def health(self, uuid: str, word: str) -> None:
        """The kubelet believes this of a GPU."""
        await self.kubelet.until(lambda: self.kubelet.devices(RESOURCE).get(uuid) == word, WITHIN)

    def asked(self, method: str) -> list[tuple[str, ...]]:
        """The devices of every call of one hook, in order."""
        return [call.ids for call in self.kubelet.calls if call.method == method]

    async def within(self, method: str) -> Call:
        """The call of one hook that is under way, as soon as there is one."""
        await self.kubelet.until(lambda: any(call.method == method and not call.outcome for call in self.kubelet.calls))
        return next(call for call in self.kubelet.calls if call.method == method and not call.outcome)

    @asynccontextmanager
    async def door(self) -> AsyncIterator[deviceplugin_pb2_grpc.DevicePluginAsyncStub]:
        """The plugin's own socket, for whoever asks beside the kubelet."""
        socket = self.stage.kubelet_dir / self.kubelet.registrations[-1].endpoint
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=endpoint.OPTIONS) as channel:
            yield deviceplugin_pb2_grpc.DevicePluginStub(channel)

    async def said(self, program: ServiceProgram, words: str) -> None:
        """Wait until the log of a program contains these words."""
        with Inotify() as inotify:
            inotify.add_watch(program.log, Mask.MODIFY)
            async with asyncio.timeout(WITHIN):
                while words not in program.log.read_text():
                    await inotify.get()

    # -- what befalls it

    async def restart_kubelet(self) -> None:
        """Killed, and back."""
        await self.kubelet.kill()
        await self.kubelet.start()
        await self.kubelet.registered(RESOURCE, WITHIN)

    async def restart_plugin(self) -> None:
        """Killed, and back once the kubelet has noticed: until then it believes in the old one."""
        await self.stage.plugin.end(signal.SIGKILL)
        await self.offered(0)
        await self.stage.plugin.start()
        await self.kubelet.registered(RESOURCE, WITHIN)

    async def restart_service(self) -> None:
        """Killed, and back."""
        await self.stage.service.end(signal.SIGKILL)
        await self.stage.start()

    async def reboot(self) -> None:
        """Everything is killed and comes back under another driver; pods wait to be admitted again."""
        await self.kubelet.reboot()
        await self.stage.plugin.end(signal.SIGKILL)
        await self.stage.service.end(signal.SIGKILL)
        layout.load_driver(self.stage.simulated, "the boot before")
        await self.kubelet.start()
        await self.stage.start()
