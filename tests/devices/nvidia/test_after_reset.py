"""A GPU is back from its reset when it is the same one at the same place, well, and divided as it was."""

from __future__ import annotations

from dataclasses import replace

import pynvml
import pytest

from scrubber.devices.base import DeviceError, DeviceLostError
from scrubber.devices.nvidia import reset
from scrubber.devices.nvidia.nvml import RecoveryAction
from tests.devices.nvidia import bench
from tests.devices.nvidia.bench import SHORT, target, there

gpu, cut = bench.gpu, bench.cut  # fixtures


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    """Pauses that were made; they take no time."""
    made: list[float] = []
    monkeypatch.setattr(reset, "sleep", made.append)
    return made


def test_after_a_reset_nvml_is_reopened_with_growing_pauses(rig, gpu, monkeypatch) -> None:
    made: list[float] = []

    def pause(seconds: float) -> None:
        made.append(seconds)
        if len(made) == 4:
            gpu.set(lost=0)

    monkeypatch.setattr(reset, "sleep", pause)
    rig.machine.set({"smi.then.lost": 1})
    reset.reset(target(rig, patience=replace(SHORT, coming_back=60)))
    assert made == [0.05, 0.1, 0.2, 0.4]
    calls = [call for _, call, _ in rig.machine.calls()]
    assert len([call for call in calls[calls.index("nvidia-smi-ends") :] if call.startswith("nvmlInit")]) == 5


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("then", [{"lost": 1}, {"absent": 1}], ids=["lost", "absent"])
def test_a_gpu_absent_after_its_reset_is_lost(rig, then: dict[str, object]) -> None:
    rig.machine.set({f"smi.then.{key}": value for key, value in then.items()})
    with pytest.raises(DeviceLostError, match=r"cannot reset: it is not back after 0.3 s: "):
        reset.reset(target(rig))


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("then", "words"),
    [
        ({"field.230": pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT}, "it needs a reboot of the node"),
        ({"field.230": 99}, "it needs recovery action 99"),
        ({"fail.nvmlDeviceGetMemoryInfo_v2": pynvml.NVML_ERROR_UNKNOWN}, "nvmlDeviceGetMemoryInfo failed"),
        ({"fail.nvmlDeviceGetFieldValues": pynvml.NVML_ERROR_UNKNOWN}, "nvmlDeviceGetFieldValues failed"),
        ({"reset_required": 1}, "failed: "),
        ({"fabric.state": pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS}, "it has not joined its fabric again"),
    ],
    ids=["reboot", "unknown", "memory", "fields", "reset", "fabric"],
)
def test_a_faulty_gpu_after_its_reset_is_not_back(rig, then: dict[str, object], words: str) -> None:
    rig.machine.set({f"smi.then.{key}": value for key, value in then.items()})
    with pytest.raises(DeviceError, match=rf"cannot reset: it is not back after 0.3 s: .*{words}") as caught:
        reset.reset(target(rig))
    assert not isinstance(caught.value, DeviceLostError)


@pytest.mark.parametrize(
    "state",
    [{"field.230": None}, {"fabric.state": pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED}, {"fabric.state": None}],
    ids=["no recovery action", "outside a fabric", "no fabric"],
)
def test_only_what_was_there_before_must_be_back(rig, gpu, state: dict[str, object]) -> None:
    gpu.set(state)
    reset.reset(target(rig))


@pytest.mark.usefixtures("gpu")
def test_a_domain_of_many_nodes_does_not_fail_a_reset(rig) -> None:
    rig.machine.set({"smi.then.field.230": int(RecoveryAction.RECOVER_IMEX_DOMAIN)})
    reset.reset(target(rig))


def test_another_device_at_the_address_is_named_and_not_awaited(rig, gpu, pauses) -> None:
    old, new = gpu.uuid, "GPU-00000000-1111-4222-8333-a0b1c2d3e4f5"
    rig.machine.set({"smi.then.uuid": new})
    with pytest.raises(DeviceError, match=f"{new} answers at {gpu.pci} now, where {old} was"):
        reset.reset(target(rig))
    assert pauses == []


def test_the_same_device_at_another_address_is_refused(rig, gpu, pauses) -> None:
    before = gpu.pci
    rig.machine.set({"smi.then.pci": "00000000:AA:00.0"})
    with pytest.raises(DeviceError, match=f"it came back at 0000:aa:00.0 and was at {before}"):
        reset.reset(target(rig))
    assert pauses == []


# --- its slices ---


def test_slices_that_outlived_the_reset_are_left(rig, cut) -> None:
    rig.machine.set({"smi.keeps_slices": 1})
    reset.reset(target(rig))
    assert there(rig) == set(cut)
    assert not [call for _, call, _ in rig.machine.calls() if "Create" in call]


@pytest.mark.usefixtures("cut")
def test_slices_recreated_with_other_ids_are_an_error(rig) -> None:
    rig.machine.set({"smi.then.mig_salt": "other"})
    with pytest.raises(DeviceError, match=r"cannot reset: its slices did not come back: .* create the slices of GPU-"):
        reset.reset(target(rig))
