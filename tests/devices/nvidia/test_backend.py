"""What the service is told beside names and health: where a device is, and whether there is any."""

from __future__ import annotations

import json
import subprocess
import sys

import pynvml
import pytest

from scrubber.cuda import cupy_loading
from scrubber.devices.base import DeviceHandling
from scrubber.devices.nvidia.backend import Nvidia
from scrubber.devices.nvidia.holders import IDLE_AT_MOST
from tests.fakes.nvml.machine import Slice

HANDLING = DeviceHandling(("compute_mode",))


@pytest.mark.parametrize(
    ("major", "minor", "lacks"),
    [
        (7, 0, "no kernels for compute capability 7.0: Turing (7.5) or newer is needed"),
        (7, 5, None),
        (10, 0, None),
        (None, None, None),
    ],
)
def test_a_gpu_too_old_for_the_kernels_is_not_scrubbed(rig, monkeypatch, major, minor, lacks) -> None:
    monkeypatch.setattr(cupy_loading, "missing", lambda: None)
    rig.gpu(0).set({"compute.major": major, "compute.minor": minor})
    backend = rig.backend()
    old, other, *_ = backend.inventory()
    assert (backend.lacks(old), backend.lacks(other)) == (lacks, None)


def test_without_cupy_no_gpu_is_scrubbed(rig, monkeypatch) -> None:
    monkeypatch.setattr(cupy_loading, "missing", lambda: "CuPy is not installed")
    backend = rig.backend()
    assert {backend.lacks(device) for device in backend.inventory()} == {"CuPy is not installed"}


def test_an_assignment_has_all_that_a_worker_needs(rig) -> None:
    backend, gpu = rig.seen(), rig.gpu(2)
    backend.has_holders(gpu.uuid)
    address = backend.address(gpu.uuid, HANDLING)
    assert address.backend == "nvidia"
    assert json.loads(address.place) == {
        "uuid": gpu.uuid,
        "root": str(rig.host.root),
        "pci_address": gpu.pci,
        "minor": gpu.minor,
        "parent": None,
        "first_seen": str(rig.settings / f"{gpu.uuid}.json"),
        "pid_namespace": 4026531836,
        "reset_seconds": 60.0,
        "left": ["compute_mode"],
        "restore_only": False,
        "resets": str(rig.settings.parent / "resets"),
        "locks": [gpu.uuid],
        "virtual": False,
        "links": [],
        "idle_bytes": 4 * 2**20,
    }


def test_a_worker_for_a_slice_is_given_its_gpu(rig) -> None:
    backend, gpu = rig.backend(), rig.gpu(2)
    [uuid] = rig.cut(2, Slice())
    backend.inventory()
    place = json.loads(backend.address(uuid, HANDLING).place)
    assert (place["uuid"], place["parent"], place["pci_address"]) == (uuid, gpu.uuid, gpu.pci)
    assert place["first_seen"] == str(rig.settings / f"{gpu.uuid}.json")
    assert place["idle_bytes"] == IDLE_AT_MOST


def test_the_reset_domain_of_a_slice_is_its_gpu(rig) -> None:
    backend = rig.backend()
    uuid, _ = rig.cut(0, Slice(), Slice())
    backend.inventory()
    assert backend.reach(rig.gpu(1).uuid) == (str(rig.root.node(rig.gpu(1))),)
    assert backend.reach(uuid) == (str(rig.root.node(rig.gpu(0))),)


def test_linked_older_gpus_share_a_reset_domain_under_this_driver(rig) -> None:
    for gpu in rig.machine.gpus:
        gpu.set({"architecture": pynvml.NVML_DEVICE_ARCH_TURING} | {f"nvlink.{link}": None for link in range(18)})
    rig.gpu(0).set({"nvlink.0": f"1 0 2 {rig.gpu(5)['pci']}", "nvlink.1": f"1 0 2 {rig.gpu(6)['pci']}"})
    backend = rig.seen()
    nodes = [str(rig.root.node(gpu)) for gpu in rig.machine.gpus]
    first, fifth, sixth = (rig.gpu(number).uuid for number in (0, 5, 6))
    assert {backend.reach(uuid) for uuid in (first, fifth, sixth)} == {(nodes[0], nodes[5], nodes[6])}
    assert backend.reach(rig.gpu(1).uuid) == (nodes[1],)
    rig.gpu(6).set(absent=True)
    rig.reload_driver()
    backend.inventory()
    assert {backend.reach(uuid) for uuid in (first, fifth)} == {(nodes[0], nodes[5])}


def test_a_library_that_goes_on_to_serve_is_opened_once(rig) -> None:
    assert Nvidia.probe(rig.host, rig.library) is None
    rig.backend().inventory()
    assert [call for _, call, _ in rig.machine.calls()].count("nvmlInitWithFlags") == 1


def test_why_a_node_cannot_be_served_is_one_sentence(rig) -> None:
    for gpu in rig.machine.gpus:
        gpu.set(absent=True)
    assert Nvidia.probe(rig.host, rig.library) == "the NVIDIA driver is loaded and lists no GPU"
    rig.library.close()
    rig.machine.fail("nvmlInitWithFlags", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    assert "the driver was replaced" in str(Nvidia.probe(rig.host, rig.library))
    (rig.host.proc_driver / "version").unlink()
    assert "cannot find the NVIDIA driver" in str(Nvidia.probe(rig.host, rig.library))


def test_a_node_without_the_library_says_so(rig) -> None:
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from scrubber.devices.nvidia.backend import Nvidia\nfrom scrubber.devices.nvidia.host import Host\n"
        "from scrubber.devices.nvidia.nvml import Library\nprint(Nvidia.probe(Host(Path(sys.argv[1])), Library()))"
    )
    command = [sys.executable, "-c", code, str(rig.host.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"LD_LIBRARY_PATH": "/nowhere"})
    assert "libnvidia-ml.so.1 is not installed here" in done.stdout
