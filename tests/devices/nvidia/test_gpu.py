"""What a worker child does to an NVIDIA GPU, or to one slice of it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from ground.documents import strict_json
from policies.hardware import Setting
from scrubber.core.model import Vitals
from scrubber.devices.base import DeviceError, DeviceHandling, DeviceLostError, Gpu
from scrubber.devices.nvidia import preconditions, reset
from scrubber.devices.nvidia.address import WorkerTarget
from scrubber.devices.nvidia.gpu import NvidiaGpu
from scrubber.devices.nvidia.settings import KNOBS, LOCKED_CLOCKS
from tests.devices.nvidia import bench
from tests.devices.nvidia.bench import (
    Skipping,
    by_tool,
    no_holders,
    one_holder,
    place,
    slice_of,
    there,
    touch,
    touch_for,
)

OTHER = "MIG-00000000-1111-2222-3333-444444444444"
gpu, cut, root = bench.gpu, bench.cut, bench.root  # fixtures


def test_a_gpu_fits_the_port_and_asks_nvml_late(rig) -> None:
    port: Gpu = touch(rig, 0)
    assert rig.machine.calls() == []
    assert port.vitals() == Vitals()


def test_memory_in_use_while_idle_is_no_leak(rig) -> None:
    rig.gpu(0).set({"memory.used": 100 * 2**20})
    assert touch(rig, 0, idle_bytes=90 * 2**20).vitals() == Vitals()
    assert touch(rig, 0, idle_bytes=10 * 2**20).vitals() == Vitals(leaked_bytes=90 * 2**20)
    assert touch(rig, 0).vitals().leaked_bytes > 0


def test_memory_that_the_driver_frees_late_is_no_leak(rig, gpu) -> None:
    gpu.set({"memory.used": 100 * 2**20})
    freed = Skipping(lambda: gpu.set({"memory.used": 0}))
    one = touch_for(rig, freed, idle_bytes=10 * 2**20)
    assert one.vitals() == Vitals()
    waited = freed.skipped
    assert (one.vitals(), freed.skipped) == (Vitals(), waited)  # free memory is not waited for


def test_health_reads_again_what_leaked_when_the_settings_were_restored(rig, gpu) -> None:
    gpu.set({"memory.used": 100 * 2**20})
    one = touch_for(rig, Skipping(lambda: gpu.set({"memory.used": 0})), idle_bytes=10 * 2**20)
    one.restore_settings()
    gpu.set({"memory.used": 0})
    assert one.vitals() == Vitals()


def test_an_invalid_address_opens_no_gpu(rig) -> None:
    whole = json.loads(place(rig, 0))
    changes: tuple[dict[str, object], ...]
    changes = {"fan": 3}, {"left": 3}, {"locks": 3}, {"reset_seconds": "60"}, {"resets": None}, {"first_seen": None}
    for text in ("", "[]", json.dumps({"uuid": "GPU-1"}), *(json.dumps(whole | change) for change in changes)):
        with pytest.raises(ValueError, match=r".+"):
            NvidiaGpu(text, no_holders)


@pytest.mark.usefixtures("root", "gpu")
def test_without_a_full_observation_no_reset_runs(rig) -> None:
    with pytest.raises(DeviceError, match="its holders are unknown"):
        NvidiaGpu(place(rig, 0), lambda: None, rig.library).reset()
    assert by_tool(rig) == []


@pytest.mark.usefixtures("gpu")
def test_only_root_resets_a_gpu(rig, monkeypatch) -> None:
    monkeypatch.setattr(preconditions, "is_root", lambda: False)
    with pytest.raises(DeviceError, match="it takes root"):
        touch(rig, 0).reset()


@pytest.mark.parametrize("seconds", [1.0, 5.0, 60.0, 600.0])
def test_its_patience_fits_into_the_deadline_of_the_step(monkeypatch, seconds: float) -> None:
    ended: list[float] = []
    process: Any = SimpleNamespace(pid=1, stdout=None, communicate=lambda *, timeout: ended.append(timeout))
    monkeypatch.setattr("os.killpg", lambda *_: None)
    patience = preconditions.Patience.within(seconds)
    with pytest.raises(DeviceError, match="was killed"):
        reset._kill(process, patience.tool)
    assert patience.leaving + patience.tool + ended[0] + patience.coming_back < 0.95 * seconds


@pytest.mark.usefixtures("root", "gpu")
def test_a_late_tool_is_killed(rig, monkeypatch) -> None:
    monkeypatch.setattr(reset, "_ENDING", 60)  # here it may take longer to end than it was given to reset
    rig.machine.set({"smi.reset": "hang"})
    with pytest.raises(DeviceError, match=r"it was not done within 0.5 s and was killed"):
        touch(rig, 0, reset_seconds=1).reset()


# --- settings that a reset brings into force ---


@pytest.fixture
def first_seen(rig, gpu) -> str:  # noqa: ARG001 - what is looked at first must be free
    """The file of the settings that the first GPU was seen with."""
    file = str(rig.settings / f"{rig.gpu(0).uuid}.json")
    touch(rig, 0, first_seen=file).restore_settings()
    return file


@pytest.mark.usefixtures("root")
def test_a_reset_does_not_apply_pending_settings_of_a_tenant(rig, gpu, first_seen) -> None:
    gpu.set({"ecc.pending": 0, "mig_mode.pending": 1})
    one = touch(rig, 0, first_seen=first_seen)
    one.reset()
    assert (gpu["ecc.current"], gpu["mig_mode.current"]) == ("1", "0")
    assert one.restore_settings().drift == ()


@pytest.mark.usefixtures("root")
def test_an_unsupported_ecc_setting_does_not_prevent_a_reset(rig, gpu, first_seen) -> None:
    gpu.set({"ecc.pending": 0})
    gpu.fail("nvmlDeviceSetEccMode", pynvml.NVML_ERROR_NOT_SUPPORTED)
    touch(rig, 0, first_seen=first_seen).reset()
    assert by_tool(rig)


@pytest.mark.usefixtures("root")
def test_ecc_is_unchanged_while_a_holder_prevents_the_reset(rig, gpu, first_seen) -> None:
    gpu.set({"ecc.pending": 0})
    with pytest.raises(DeviceError, match='it is open in "train"'):
        touch(rig, 0, one_holder, first_seen=first_seen).reset()
    assert gpu["ecc.pending"] == "0"


@pytest.mark.usefixtures("root")
def test_a_silent_gpu_is_reset_without_reading_its_settings(rig, gpu) -> None:
    gpu.set(reset_required=1)
    touch(rig, 0, first_seen=str(rig.settings / "new.json")).reset()
    assert by_tool(rig)


@pytest.mark.usefixtures("root")
def test_a_reset_for_a_slice_restores_its_gpus_settings(rig, cut, first_seen) -> None:
    gpu = rig.gpu(0)
    gpu.set({"compute_mode": 3, "power.limit": 450000})
    slice_of(rig, cut[0], first_seen=first_seen).reset()
    assert (gpu["compute_mode"], gpu["power.limit"], gpu["persistence_mode"]) == ("0", "700000", "0")


# --- the library ---


@pytest.mark.usefixtures("root")
def test_the_driver_is_closed_between_any_two_steps(rig, gpu, first_seen) -> None:
    one = touch(rig, 0, first_seen=first_seen)

    def open_here() -> set[str]:
        links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return {str(link.readlink()) for link in links} & {str(rig.root.node(it)) for it in every}

    every = rig.machine.gpus
    with rig.library.session() as session:
        session.handle(gpu.uuid)
        assert len(open_here()) == len(every)
    for deed in (one.vitals, one.restore_settings, one.reset):
        deed()
        assert (rig.machine.clients(), open_here()) == ((), set()), deed
    gpu.set(lost=1)
    for deed in (one.vitals, one.restore_settings, one.reset):
        with contextlib.suppress(DeviceError):
            deed()
        assert (rig.machine.clients(), open_here()) == ((), set()), deed


# --- slices ---


@pytest.mark.usefixtures("root")
def test_a_slice_absent_before_the_reset_is_missed_after_it(rig, cut) -> None:
    with pytest.raises(DeviceLostError, match=f"cannot reset {OTHER}: it did not come back with its GPU"):
        slice_of(rig, OTHER).reset()
    assert there(rig) == set(cut)


@pytest.mark.usefixtures("root")
def test_slices_of_a_silent_gpu_are_missed_after_its_reset(rig, cut) -> None:
    rig.gpu(0).set(reset_required=1)
    with pytest.raises(DeviceLostError, match=f"cannot reset {cut[0]}: it did not come back with its GPU"):
        slice_of(rig, cut[0]).reset()


# --- as the service opens it ---


@pytest.mark.usefixtures("root")
def test_the_backends_address_opens_the_device(rig, cut) -> None:
    backend = rig.seen()
    handling = DeviceHandling(("power_limit",))
    for number in (0, 1):
        rig.gpu(number).set({"power.limit": 500000, "compute_mode": 3})
    for uuid in (cut[0], rig.gpu(1).uuid):
        said = strict_json.decode(WorkerTarget, backend.address(uuid, handling).place)
        assert said.uuid == uuid
        NvidiaGpu(backend.address(uuid, handling).place, no_holders, rig.library).restore_settings()
    limits = [rig.gpu(number)["power.limit"] for number in (0, 1)]
    modes = [rig.gpu(number)["compute_mode"] for number in (0, 1)]
    assert (limits, modes) == (["500000", "500000"], ["3", "0"]), "of a whole GPU alone, and not what is left"


def test_every_setting_of_the_policy_is_known() -> None:
    assert {it.value for it in Setting} == {*(knob.name for knob in KNOBS), LOCKED_CLOCKS}
