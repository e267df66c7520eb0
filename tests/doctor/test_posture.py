"""Files as the kernel, the driver and its installer make them, under a root that is not the machine's own."""

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from autoclave.doctor.facts import posture, safe_read
from autoclave.doctor.node_facts import CheckFault
from ground.documents import strict_json
from scrub_api import views
from scrubber.devices.nvidia.settings import StoredSettings
from tests import descriptors
from tests.doctor.nodes import GPU, SERVICE, at

OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.142  Release Build  (dvs-builder@U22)\nGCC version:\n"
)
PARAMS = (
    'ResmanDebugLevel: 4294967295\nInitializeSystemMemoryAllocations: 1\nRegistryDwords: "RMFoo=1;RMBar=0x2"\n'
    'RegistryDwordsPerDevice: "pci=0000:3b:00.0;RMFoo=1"\nRmMsg: ""\n'
)
READ = {
    "ResmanDebugLevel": "4294967295", "InitializeSystemMemoryAllocations": "1", "RegistryDwords": "RMFoo=1;RMBar=0x2",
    "RegistryDwordsPerDevice": "pci=0000:3b:00.0;RMFoo=1", "RmMsg": "",
}  # fmt: skip
VERSION, MODULE = "proc/driver/nvidia/version", "sys/module/nvidia/version"
LIBRARY = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so"
LIBRARIES = (
    LIBRARY, f"{LIBRARY}.1", f"{LIBRARY}.580.142", "usr/lib64/libnvidia-ml.so.570.9", "usr/lib64/libcuda.so.580.1",
    "run/nvidia/driver/usr/lib64/libnvidia-ml.so.580.142",
)  # fmt: skip
BUS, GPUS, CGROUPS = "sys/bus/pci/devices", "proc/driver/nvidia/gpus", "sys/fs/cgroup"
ABSENT, FAULT = "absent", "a fault, and there"


def gpu(functions, address="0000:3b:00.0", vendor="0x10de"):
    place = f"{BUS}/{address}"
    return {f"{place}/vendor": f"{vendor}\n", f"{place}/sriov_numvfs": f"{functions}\n"}


def device(address, vendor, kind):
    return {f"{BUS}/{address}/vendor": f"{vendor}\n", f"{BUS}/{address}/class": f"{kind}\n"}


ROWS = {
    "no driver": (posture.driver, {}, ABSENT),
    "the version that the driver says": (posture.driver, {VERSION: OPEN}, "580.142"),
    "the version that the kernel says": (posture.driver, {VERSION: OPEN, MODULE: "580.150.01\n"}, "580.150.01"),
    "a driver without a version": (posture.driver, {VERSION: "hello\n"}, FAULT),
    "a driver that hides its version": (posture.driver, {f"{MODULE}/a": ""}, FAULT),
    "no library": (posture.libraries, {}, ()),
    "libraries of two versions": (posture.libraries, dict.fromkeys(LIBRARIES, ""), ("570.9", "580.142")),
    "no options": (posture.options, {}, ABSENT),
    "options": (posture.options, {"proc/driver/nvidia/params": PARAMS}, READ),
    "no list of devices": (posture.shared_with_guests, {}, ABSENT),
    "no number of functions": (posture.shared_with_guests, gpu("many"), FAULT),
    "no virtual functions": (
        posture.shared_with_guests,
        {**gpu(0), **gpu(8, "0000:5e:00.0", vendor="0x8086"), f"{BUS}/0000:00:00.0/vendor": "0x10de\n"}, (),
    ),
    "functions and the vGPU module": (
        posture.shared_with_guests, {**gpu(16), "sys/module/nvidia_vgpu_vfio/a": ""},
        ("module nvidia_vgpu_vfio is loaded", "0000:3b:00.0 has 16 virtual functions"),
    ),
    "no bus": (posture.on_bus, {}, ()),
    "GPUs on the bus": (
        posture.on_bus,
        {**device("1:17", "0x10de", "0x030200"), **device("1:18", "0x10de", "0x06"), **device("1", "0x8086", "0x03")},
        ("1:17",),
    ),
    "no GPU of the driver": (posture.numa_gpus, {}, ()),
    "a GPU whose memory is a node": (
        posture.numa_gpus, {f"{GPUS}/0009:01:00.0/numa_status": "Node: 1\n", f"{GPUS}/0019:01:00.0/information": ""},
        ("0009:01:00.0",),
    ),
    "no daemon": (posture.persistenced, {}, False),
    "a file instead of the daemon's socket": (posture.persistenced, {"run/nvidia-persistenced/socket": ""}, False),
    "an instance of EC2": (posture.on_ec2, {"sys/class/dmi/id/sys_vendor": "Amazon EC2\n"}, True),
    "a machine of another vendor": (posture.on_ec2, {"sys/class/dmi/id/sys_vendor": "Supermicro\n"}, False),
    "no firmware that says anything": (posture.on_ec2, {}, False),
    "no control groups": (posture.cgroups, {}, ABSENT),
    "no version of control groups": (posture.cgroups, {f"{CGROUPS}/a": ""}, FAULT),
    "version 2": (posture.cgroups, {f"{CGROUPS}/cgroup.controllers": "", f"{CGROUPS}/a/cgroup.procs": ""}, "version 2"),
    "version 1": (posture.cgroups, {f"{CGROUPS}/memory/tasks": "", f"{CGROUPS}/systemd/tasks": ""}, "version 1"),
    "both versions": (
        posture.cgroups, {f"{CGROUPS}/memory/tasks": "", f"{CGROUPS}/unified/cgroup.controllers": ""},
        "versions 1 and 2 side by side",
    ),
    "version 2 alone, below": (
        posture.cgroups, {f"{CGROUPS}/unified/cgroup.controllers": ""}, "version 2, below unified",
    ),
}  # fmt: skip


def kind_of(found):
    return found if not isinstance(found, CheckFault) else ABSENT if found.absent else FAULT


@pytest.mark.parametrize(("look", "files", "expected"), ROWS.values(), ids=ROWS)
def test_each_fact_is_read_from_its_files(tmp_path, look, files, expected):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert kind_of(look(at(tmp_path))) == expected


@pytest.mark.parametrize("inside", ["", "run/nvidia/driver"])
def test_the_persistence_daemon_may_run_in_a_driver_container(short_tmp, inside):
    place = short_tmp / inside / "run/nvidia-persistenced/socket"
    place.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as persistenced:
        persistenced.bind(str(place))
        assert posture.persistenced(at(short_tmp)) is True


def test_persistence_is_kept_if_each_gpu_was_seen_with_it(tmp_path):
    settings = tmp_path / "settings"
    settings.mkdir()
    for name, persistence in {"GPU-1": True, "GPU-2": False}.items():
        (settings / f"{name}.json").write_bytes(strict_json.encode(StoredSettings(persistence=persistence)))
    (settings / "GPU-3.json").write_text("{")
    (settings / "GPU-4.json").write_text("[1]")

    def kept(*gpus, **more) -> bool:
        devices = tuple(replace(GPU, device=gpu, **more) for gpu in gpus)
        status = views.Status(devices, replace(SERVICE, state_dir=str(tmp_path)))
        return posture.persistence_kept(at(tmp_path), status)

    assert [kept("GPU-1", f"GPU-{number}") for number in range(1, 6)] == [True, False, False, False, False]
    assert not kept()
    assert not kept("GPU-1", mig=True), "a slice has no persistence mode"


def test_this_machine_has_control_groups_and_room():
    assert isinstance(posture.cgroups(at(Path("/"))), str)
    room = posture.room(at(Path("/")), "/tmp")
    found = os.statvfs("/tmp")
    assert not isinstance(room, CheckFault)
    assert 0 <= room.free_bytes <= found.f_blocks * found.f_frsize
    assert room.free_files is None or 0 <= room.free_files <= found.f_files


def test_a_filesystem_without_inodes_has_no_count(tmp_path):
    assert os.statvfs("/proc").f_files == 0  # the kernel counts no files of processes
    room = posture.room(at(tmp_path), "/proc")
    assert not isinstance(room, CheckFault)
    assert room.free_files is None
    assert kind_of(posture.room(at(tmp_path), str(tmp_path / "none"))) == ABSENT


def test_a_pipe_or_a_loop_of_links_is_a_fault(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    before = descriptors.opened()
    for name in ("pipe", "loop", ".", "none", "none/deeper"):
        assert isinstance(safe_read.text(tmp_path / name), CheckFault)
    assert descriptors.opened() <= before


def test_a_file_of_absurd_size_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(safe_read, "LARGEST", 4)
    (tmp_path / "four").write_text("1234")
    (tmp_path / "five").write_text("12345")
    assert safe_read.text(tmp_path / "four") == "1234"
    assert isinstance(safe_read.text(tmp_path / "five"), CheckFault)


def test_a_link_that_leads_nowhere_is_something(tmp_path):
    (tmp_path / "link").symlink_to("/nowhere")
    assert safe_read.there(tmp_path / "link") is True
    assert safe_read.there(tmp_path / "none") is False
    (tmp_path / "loop").symlink_to("loop")
    assert isinstance(safe_read.there(tmp_path / "loop/below"), CheckFault)
