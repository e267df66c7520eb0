"""What is there is named as NVIDIA's plugin names it, and goes on being named."""

from __future__ import annotations

import pynvml
import pytest
from structlog.testing import capture_logs

from scrubber.core.model import DeviceInfo, Vitals
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia import nvlinks
from tests.fakes.nvml.machine import Slice
from tests.fakes.nvml.presets import MIB

NO_LINKS = {f"nvlink.{link}": None for link in range(18)}
STATIC = {"nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetNvLinkState"}


def named(backend) -> dict[str, DeviceInfo]:
    return {info.uuid: info for info in backend.inventory()}


def test_the_inventory_reports_every_field_of_a_gpu(rig) -> None:
    first, fifth = (rig.gpu(number) for number in (0, 4))
    found = named(rig.backend())
    assert len(found) == 8
    assert found[fifth.uuid] == DeviceInfo(
        uuid=fifth.uuid,
        index=4,
        model="NVIDIA H200",
        memory_bytes=143771 * MIB,
        numa_node=1,
        pci_address="0000:9d:00.0",
        reset_domain=rig.gpu(4).uuid,
        island=first.uuid,
        nodes=("/dev/nvidia4",),
        minor=4,
        compute="9.0",
        ecc=True,
        serial="1654023000004",
    )


def test_everything_that_is_known_of_a_slice(rig) -> None:
    backend, gpu = rig.backend(), rig.gpu(1)
    _, uuid = rig.cut(1, Slice("3g.71gb"), Slice("1g.18gb", start=4))
    gi = int(gpu["mig.1.gi"])
    access = [rig.root.capability(gpu, gi), rig.root.capability(gpu, gi, 0)]
    minors = [int(path.read_text().split()[1]) for path in access]
    caps = [f"nvidia-caps/nvidia-cap{minor}" for minor in minors]
    assert named(backend)[uuid] == DeviceInfo(
        uuid=uuid,
        index=1,
        model="NVIDIA H200 MIG 1g.18gb",
        memory_bytes=16384 * MIB,
        mig=True,
        resource="nvidia.com/mig-1g.18gb",
        numa_node=0,
        pci_address=gpu.pci,
        reset_domain=gpu.uuid,
        nodes=("/dev/nvidia1", *(f"/dev/{cap}" for cap in caps)),
        minor=1,
        compute="9.0",
        ecc=True,
        serial="1654023000001",
        parent=gpu.uuid,
        slice=1,
    )
    assert backend.files(uuid) == (*(str(rig.host.dev / cap) for cap in caps), *map(str, access))


def test_the_minor_number_of_a_gpu_is_not_its_index(rig) -> None:
    rig.gpu(0).set(minor=7)
    backend = rig.backend()
    assert named(backend)[rig.gpu(0).uuid].nodes == ("/dev/nvidia7",)
    assert backend.files(rig.gpu(0).uuid) == (str(rig.host.dev / "nvidia7"),)


@pytest.mark.parametrize("text", ["-1\n", "", "near\n", None])
def test_a_missing_numa_node_is_none(rig, text: str | None) -> None:
    file = rig.root.pci(rig.gpu(0)) / "numa_node"
    file.unlink() if text is None else file.write_text(text)
    assert named(rig.backend())[rig.gpu(0).uuid].numa_node is None


def test_a_gpu_that_is_cut_is_offered_in_slices_only(rig) -> None:
    uuids = rig.cut(0, *[Slice()] * 7)
    found = named(rig.backend())
    assert rig.gpu(0).uuid not in found
    assert [info.slice for info in found.values() if info.mig] == [*range(7)]
    assert {info.uuid for info in found.values() if info.mig} == {*uuids}
    assert len(found) == 7 + 7


def test_a_gpu_in_mig_mode_without_slices_offers_nothing(rig) -> None:
    rig.cut(0)
    backend = rig.backend()
    with capture_logs() as logs:
        assert len(backend.inventory()) == len(backend.inventory()) == 7
    assert [entry["event"] for entry in logs] == [
        f"cannot offer anything of GPU 0 ({rig.gpu(0).uuid}): it is in MIG mode without a slice to offer"
    ]


@pytest.mark.parametrize(
    ("name", "profile", "resource"),
    [
        ("NVIDIA H200 MIG 1g.18gb+me", 7, "nvidia.com/mig-1g.18gb.me"),
        ("NVIDIA H200 MIG 1g.18gb", 7, "nvidia.com/mig-1g.18gb.me"),
        ("NVIDIA H200 MIG 1g.18gb", 0, "nvidia.com/mig-1g.18gb"),
        ("NVIDIA H200 MIG 1g.18gb", None, "nvidia.com/mig-1g.18gb"),  # the driver has no data of instances
        ("NVIDIA H200 MIG 1c.3g.71gb", 2, "nvidia.com/mig-1c.3g.71gb"),
        ("NVIDIA RTX PRO 6000 MIG 1g.24gb+me.all", 0, "nvidia.com/mig-1g.24gb.me.all"),
        ("NVIDIA RTX PRO 6000 MIG 1g.24gb-me", 0, "nvidia.com/mig-1g.24gb-me"),
    ],
)
def test_a_slice_has_the_name_of_nvidias_plugin(rig, name: str, profile: int | None, resource: str) -> None:
    [uuid] = rig.cut(0, Slice())
    rig.gpu(0).set({"mig.0.name": name, f"gi.{rig.gpu(0)['mig.0.gi']}.profile": profile})
    if profile is None:
        rig.gpu(0).fail("nvmlDeviceGetGpuInstanceById", pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert named(rig.backend())[uuid].resource == resource


def test_a_slice_with_unknown_nodes_or_profile_is_not_offered(rig) -> None:
    first, second, third, last = rig.cut(0, Slice(), Slice(), Slice(), Slice())
    rig.root.capability(rig.gpu(0), int(rig.gpu(0)["mig.0.gi"]), 0).write_text("DeviceFileMode: 256\n")
    rig.root.capability(rig.gpu(0), int(rig.gpu(0)["mig.1.gi"])).unlink()
    rig.gpu(0).set({"mig.2.name": "NVIDIA H200"})
    with capture_logs() as logs:
        found = named(rig.backend())
    assert [info.uuid for info in found.values() if info.mig] == [last]
    assert [entry["event"].split(":")[0] for entry in logs] == [f"cannot offer {it}" for it in (first, second, third)]
    assert logs[2]["event"].endswith("cannot tell the MIG profile of 'NVIDIA H200'")


def test_slices_that_share_their_memory_are_not_offered(rig) -> None:
    first, second, third = rig.cut(0, Slice(), Slice(), Slice())
    rig.gpu(0).set({"mig.1.gi": rig.gpu(0)["mig.0.gi"], "mig.1.ci": 1})
    with capture_logs() as logs:
        found = named(rig.backend())
    assert not {first, second} & {*found}
    assert third in found
    assert logs[0]["event"] == f"cannot offer {first}: its memory is shared by 2 slices"


def test_an_unreadable_slice_may_share_memory_with_any_other(rig) -> None:
    first, second = rig.cut(0, Slice(), Slice())
    rig.gpu(0).set({"mig.1.fail.nvmlDeviceGetGpuInstanceId": pynvml.NVML_ERROR_UNKNOWN})
    backend = rig.backend()
    assert not {first, second} & {*named(backend)}
    rig.gpu(0).set({"mig.1.fail.nvmlDeviceGetGpuInstanceId": None})
    assert {first, second} <= {*named(backend)}


def test_new_slices_appear_and_removed_slices_stay_listed_as_lost(rig) -> None:
    backend = rig.backend()
    old = rig.cut(0, Slice(), Slice())
    assert {*old} <= {*named(backend)}
    [new] = rig.cut(0, Slice("7g.141gb"))
    found = named(backend)
    assert {*old, new} <= {*found}
    assert {backend.vitals(uuid) for uuid in old} == {Vitals(lost=True)}
    assert backend.vitals(new) == Vitals()


def test_a_slice_that_moved_is_listed_at_its_new_place(rig) -> None:
    backend = rig.backend()
    [uuid] = rig.cut(0, Slice(uuid="MIG-moved"))
    before = named(backend)[uuid], backend.files(uuid)
    rig.cut(0, Slice(uuid="MIG-moved", start=4))
    after = named(backend)[uuid], backend.files(uuid)
    assert before[0].nodes != after[0].nodes
    assert before[1] != after[1]


def test_a_gpu_off_the_bus_stays_listed_until_it_returns(rig) -> None:
    backend, uuid = rig.backend(), rig.gpu(3).uuid
    before = backend.inventory()
    rig.gpu(3).set(absent=True)
    found = named(backend)
    assert found[uuid] == before[3]
    assert found[rig.gpu(4).uuid].index == 3
    assert backend.vitals(uuid) == Vitals(lost=True)
    rig.gpu(3).set(absent=None)
    assert backend.inventory() == before
    assert backend.vitals(uuid) == Vitals()


def test_nvml_is_reopened_for_a_missing_gpu_now_and_then(rig) -> None:
    backend = rig.seen()
    rig.gpu(3).set(absent=True)
    for _ in range(5):
        backend.inventory()
    assert [call for _, call, _ in rig.machine.calls()].count("nvmlInitWithFlags") == 2


def test_a_repeated_fault_is_logged_again(rig) -> None:
    backend = rig.backend()
    with capture_logs() as logs:
        for lost in (1, 1, None, 1):
            rig.gpu(0).set(lost=lost)
            found = named(backend)
    assert len(found) == 7 + 1  # it was seen before it was lost again
    assert len(logs) == 2
    assert logs[0]["event"].startswith("cannot read GPU 0, so nothing new of it is offered:")


def test_an_unloaded_driver_is_an_error_not_lost_gpus(rig) -> None:
    backend = rig.backend()
    rig.gpu(5).fail("nvmlDeviceGetUUID", pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with pytest.raises(DeviceError, match="the driver is not loaded"):  # in the middle of a round
        backend.inventory()
    rig.gpu(5).fail("nvmlDeviceGetUUID", None)
    backend.inventory()
    rig.machine.unload()
    with pytest.raises(DeviceError):
        backend.inventory()


def test_files_of_another_life_of_the_driver_are_not_trusted(rig) -> None:
    backend, uuid = rig.seen(), rig.gpu(0).uuid
    rig.reload_driver()
    with pytest.raises(DeviceError, match="was reloaded"):
        backend.files(uuid)
    backend.inventory()
    assert backend.files(uuid) == (str(rig.root.node(rig.gpu(0))),)


def test_a_gpu_is_identified_once(rig) -> None:
    backend = rig.backend()
    rig.cut(0, Slice())
    backend.inventory()
    before = len(rig.machine.calls())
    backend.inventory()
    assert not STATIC & {call for _, call, _ in rig.machine.calls()[before:]}


def test_a_gpu_is_identified_again_after_reset_or_driver_change(rig) -> None:
    backend = rig.seen()
    rig.gpu(0).set({"memory.total": 100 * MIB, "minor": 9})
    backend.release_driver()
    backend.reacquire_driver()
    assert backend.inventory()[0].memory_bytes == 100 * MIB
    rig.gpu(0).set({"memory.total": 200 * MIB})
    rig.reload_driver()
    assert backend.inventory()[0].memory_bytes == 200 * MIB


@pytest.mark.parametrize(
    ("architecture", "domain"),
    [(pynvml.NVML_DEVICE_ARCH_HOPPER, None), (pynvml.NVML_DEVICE_ARCH_TURING, "nvswitch")],
    ids=["a reset is of one GPU", "a reset follows the links"],
)
def test_a_gpu_with_unreadable_links_is_listed(rig, architecture: int, domain: str | None) -> None:
    """Where a reset follows the links, it may take down every GPU."""
    rig.set_all(NO_LINKS, architecture=architecture)
    rig.gpu(0).fail("nvmlDeviceGetNvLinkState", pynvml.NVML_ERROR_UNKNOWN)
    backend = rig.backend()
    with capture_logs() as logs:
        found = backend.inventory()
    assert [info.index for info in found] == [*range(8)]
    assert {info.reset_domain for info in found} == ({domain} if domain else {gpu.uuid for gpu in rig.machine.gpus})
    assert [entry["event"].split(":")[0] for entry in logs] == ["cannot read the NVLinks of GPU 0"]
    rig.gpu(0).fail("nvmlDeviceGetNvLinkState", None)
    rig.gpu(0).set({"nvlink.0": f"1 0 4 {rig.gpu(1)['pci']}"})
    assert [info.island for info in backend.inventory()] == [rig.gpu(0).uuid] * 2 + [None] * 6


def test_links_that_come_up_later_are_seen(rig, monkeypatch) -> None:
    for gpu in rig.machine.gpus:
        gpu.set({f"nvlink.{link}": f"0 2 4 {gpu['pci']}" for link in range(18)})
    backend = rig.backend()
    assert {info.island for info in backend.inventory()} == {None}
    for gpu in rig.machine.gpus:
        gpu.set({"nvlink.0": f"1 2 4 {gpu['pci']}"})
    assert {info.island for info in backend.inventory()} == {None}
    monkeypatch.setattr(nvlinks, "LINKS_HOLD", 0.0)
    assert {info.island for info in backend.inventory()} == {rig.gpu(0).uuid}


def test_switched_ampere_gpus_and_slices_are_one_reset_domain(rig, monkeypatch) -> None:
    monkeypatch.setattr(nvlinks, "LINKS_HOLD", 0.0)
    rig.set_all(architecture=pynvml.NVML_DEVICE_ARCH_AMPERE)
    backend = rig.backend()
    assert {info.reset_domain for info in backend.inventory()} == {"nvswitch"}
    rig.set_all(NO_LINKS)
    [uuid] = rig.cut(1, Slice())
    assert {info.reset_domain for info in backend.inventory()} == {"nvswitch"}
    assert uuid in named(backend)


def test_an_unknown_architecture_counts_as_the_oldest(rig) -> None:
    rig.set_all(architecture=None)
    assert {info.reset_domain for info in rig.backend().inventory()} == {rig.gpu(0).uuid}


@pytest.mark.parametrize("architecture", [pynvml.NVML_DEVICE_ARCH_TURING, pynvml.NVML_DEVICE_ARCH_HOPPER])
def test_a_lost_gpu_leaves_the_islands_of_the_others(rig, monkeypatch, architecture: int) -> None:
    monkeypatch.setattr(nvlinks, "LINKS_HOLD", 0.0)
    rig.set_all(architecture=architecture)
    backend = rig.backend()
    before = backend.inventory()
    rig.gpu(0).set(lost=True)
    assert [backend.inventory() for _ in range(3)] == [before] * 3


def test_a_sliced_gpu_is_on_no_island(rig) -> None:
    backend = rig.backend()
    before = named(backend)
    [uuid] = rig.cut(0, Slice())
    after = named(backend)
    assert after[uuid].island is None
    assert {after[gpu.uuid].island for gpu in rig.machine.gpus[1:]} == {before[rig.gpu(0).uuid].island}


def test_another_life_of_the_driver_knows_no_old_neighbours(rig) -> None:
    rig.set_all(architecture=pynvml.NVML_DEVICE_ARCH_AMPERE)
    backend = rig.backend()
    assert {info.reset_domain for info in backend.inventory()} == {"nvswitch"}
    rig.set_all(NO_LINKS)
    rig.reload_driver()
    assert all(info.reset_domain == info.uuid for info in backend.inventory())
