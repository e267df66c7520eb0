"""Without persistence mode the first handle of each GPU takes seconds: no GPU is quarantined for it.

The story is told with the real service over the stand-in for NVML. The eight GPUs are set up one after another, and the
clock of the service moves by three seconds for each: nothing really waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pynvml
import pytest
from prometheus_client import CollectorRegistry

from scrubber import assembly
from scrubber.config import BackendChoice, ScrubberConfig
from scrubber.core import acquire, answers
from scrubber.core.acquire import ForPod
from scrubber.core.model import AilmentKind
from scrubber.core.observation import Purpose
from scrubber.devices.base import DeviceError, DeviceLostError
from scrubber.devices.nvidia import nvml
from scrubber.devices.nvidia.backend import Nvidia
from scrubber.devices.nvidia.nvml import Library
from scrubber.metrics.counters import ServiceCounters
from scrubber.policy import ActivePolicy
from tests.devices.nvidia.conftest import Pods, Rig
from tests.patience import WITHIN

SECONDS = 3.0  # that one GPU takes


class Service:
    """One life of the service after another, over the same ledger."""

    def __init__(self, rig: Rig, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.rig = rig
        for place in ("state", "run"):
            (root / place).mkdir(mode=0o700)
        self._config = ScrubberConfig(
            BackendChoice.NVIDIA, state_dir=root / "state", run_dir=root / "run", kubelet_dir=root
        )
        loop, self._passed = asyncio.get_running_loop(), 0.0
        real = loop.time
        patch.setattr(loop, "time", lambda: real() + self._passed)

    def start(self) -> None:
        counters = ServiceCounters(CollectorRegistry())
        self.library = Library(sets_up_gpus=True)
        assert Nvidia.probe(self.rig.host, self.library) is None
        backend = Nvidia(self.rig.host, Pods(self.rig.host.proc), self.rig.settings, self.library)
        ledger = assembly.open_ledger(self._config, counters)
        pool = assembly.build_pool(self._config)
        policy = self._config.state_dir.with_name("policy.yaml")  # no fence in the kernel of this machine
        policy.write_text("name: test\ndefaults: {fence: {mode: off}}\n")
        self.built = assembly.build(self._config, backend, ActivePolicy(str(policy)), ledger, counters, pool)

    async def stop(self) -> None:
        await self.built.service.stop()
        await self.built.pool.close()
        await self.built.ledger.close()
        self.library.close()

    async def round(self) -> None:
        """The round that comes some seconds later."""
        self._passed += SECONDS
        await self.built.monitor.round()
        assert self.quarantined() == {}

    def quarantined(self) -> dict[str, AilmentKind]:
        records = self.built.ledger.records.values()
        return {it.device.uuid: it.health.quarantine.ailment.kind for it in records if it.health.quarantine is not None}

    def begin_set_up(self) -> list[Path]:
        """From the next opening of NVML on, the first handle of each GPU waits for one of these files to vanish."""
        return [gpu.sets_up() for gpu in self.rig.machine.gpus]

    async def answers(self) -> None:
        """Wait until each GPU has returned its first handle."""
        assert await asyncio.to_thread(self.library.wait_until_set_up, WITHIN)

    async def set_up(self, files: list[Path]) -> None:
        """Set up one GPU after another. A round between two of them sees no GPU at fault."""
        for file in files:
            await self.round()
            file.unlink()
        await self.answers()
        context = self.built.service.context
        await context.jobs.slots.driver_release.reacquired()
        for _ in range(3):
            await self.round()
        context.observer.driver.patience = WITHIN
        for gpu in self.rig.machine.gpus:
            vitals = await context.observer.health.vitals(gpu.uuid)
            assert vitals is not None
            assert not vitals.partial


@pytest.fixture
async def service(rig, tmp_path, monkeypatch) -> AsyncIterator[Service]:
    """A service that has seen all eight GPUs."""
    monkeypatch.setattr(nvml, "SOON", 0.0)
    service = Service(rig, tmp_path, monkeypatch)
    service.start()
    await service.answers()
    await service.round()
    assert len(service.built.ledger.records) == 8
    yield service
    await service.stop()


async def restart(service: Service) -> None:
    await service.stop()
    service.start()


async def reset_one(service: Service) -> None:
    release = service.built.service.context.jobs.slots.driver_release
    async with release.during_reset(service.rig.gpu(0).uuid):
        pass


async def reload_driver(service: Service) -> None:
    machine = service.rig.machine
    text = machine.path.read_text()
    machine.unload()
    await service.built.monitor.round()
    machine.path.write_text(text)
    service.rig.reload_driver()


async def renew(service: Service) -> None:
    """As for a missing GPU."""
    service.library.renew()


Opening = Callable[[Service], Awaitable[None]]


@pytest.mark.parametrize("open_nvml", [restart, reset_one, reload_driver, renew])
async def test_no_gpu_is_quarantined_for_a_slow_first_answer(service, open_nvml: Opening) -> None:
    files = service.begin_set_up()
    await open_nvml(service)
    await service.set_up(files)


async def test_while_gpus_are_set_up_a_request_waits(service) -> None:
    """It is neither refused nor granted: this life of the service has seen nothing of the device yet."""
    files = service.begin_set_up()
    await restart(service)
    context = service.built.service.context
    record = next(iter(context.ledger.records.values()))
    facts = await context.observer.look(record, Purpose.GRANT)
    answer = acquire.decide(record, facts, context.device_policy(record.device.uuid).policy, context.now(), ForPod())
    assert isinstance(answer, answers.Wait)
    await service.set_up(files)


async def test_a_gpu_that_stays_silent_hides_no_other_gpu(service, monkeypatch) -> None:
    monkeypatch.setattr(nvml, "SET_UP_WITHIN", 0.0)
    monkeypatch.setattr(nvml, "ANSWER_TIMEOUT", 0.01)
    silent = service.rig.gpu(3)
    file = silent.sets_up()
    await restart(service)
    backend = service.built.service.context.observer.driver.backend
    others = {gpu.uuid for gpu in service.rig.machine.gpus} - {silent.uuid}
    while {device.uuid for device in backend.inventory()} != others:  # noqa: ASYNC110 - threads of the library report nothing
        await asyncio.sleep(0.001)
    assert backend.readings().keys() == others
    with pytest.raises(DeviceError, match="first handle of GPU 3"):
        await asyncio.to_thread(backend.release_driver)
    file.unlink()
    await service.answers()
    assert {device.uuid for device in backend.inventory()} == {*others, silent.uuid}


def test_with_persistence_mode_the_first_session_waits_for_all_gpus(rig) -> None:
    library = Library(sets_up_gpus=True)
    with library.session() as session:
        handles = {gpu.uuid: session.handle(gpu.uuid) for gpu in rig.machine.gpus}
    assert len(handles) == 8
    assert "nvmlDeviceGetHandleByUUID" not in [call for _, call, _ in rig.machine.calls()]


def test_a_gpu_that_refuses_its_first_handle_has_answered(rig) -> None:
    rig.gpu(3).set(lost=True)
    with Library(sets_up_gpus=True).session() as session, pytest.raises(DeviceLostError):
        session.handle(rig.gpu(3).uuid)


def test_an_opening_that_asked_no_gpu_is_repeated(rig) -> None:
    library = Library(sets_up_gpus=True)
    rig.machine.fail("nvmlDeviceGetCount_v2", pynvml.NVML_ERROR_UNKNOWN)
    with pytest.raises(DeviceError, match="cannot count the GPUs"), library.session():
        pass
    rig.machine.fail("nvmlDeviceGetCount_v2", None)
    with library.session() as session:
        session.handle(rig.gpu(0).uuid)
    assert [call for _, call, _ in rig.machine.calls()].count("nvmlDeviceGetHandleByIndex_v2") == 8
