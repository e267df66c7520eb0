"""Files as the kernel, the driver and its installer make them, under a root that is not the machine's own."""

import os
import socket
from pathlib import Path

import pytest

from autoclave.doctor.base import CheckFault
from autoclave.doctor.facts import posture, safe_read
from tests import descriptors

OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.142  Release Build  (dvs-builder@U22)\nGCC version:\n"
)
PARAMS = (
    'ResmanDebugLevel: 4294967295\nInitializeSystemMemoryAllocations: 1\nRegistryDwords: "RMFoo=1;RMBar=0x2"\n'
    'RegistryDwordsPerDevice: "pci=0000:3b:00.0;RMFoo=1"\nRmMsg: ""\n'
)


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_the_driver_version_comes_from_kernel_or_driver(tmp_path):
    found = posture.driver(tmp_path)
    assert isinstance(found, CheckFault)
    assert found.absent
    write(tmp_path, {"proc/driver/nvidia/version": OPEN})
    assert posture.driver(tmp_path) == "580.142"
    write(tmp_path, {"sys/module/nvidia/version": "580.150.01\n"})
    assert posture.driver(tmp_path) == "580.150.01"


def test_a_driver_without_a_version_is_loaded_but_unknown(tmp_path):
    write(tmp_path, {"proc/driver/nvidia/version": "hello\n"})
    found = posture.driver(tmp_path)
    assert isinstance(found, CheckFault)
    assert not found.absent


def test_a_driver_that_hides_its_version_is_there(tmp_path):
    (tmp_path / "sys/module/nvidia/version").mkdir(parents=True)
    found = posture.driver(tmp_path)
    assert isinstance(found, CheckFault)
    assert not found.absent


def test_the_versions_of_the_library_are_those_of_its_files(tmp_path):
    assert posture.libraries(tmp_path) == ()
    place = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so"
    write(tmp_path, dict.fromkeys([place, f"{place}.1", f"{place}.580.142", "usr/lib64/libnvidia-ml.so.570.9"], ""))
    write(tmp_path, {"run/nvidia/driver/usr/lib64/libnvidia-ml.so.580.142": "", "usr/lib64/libcuda.so.580.1": ""})
    assert posture.libraries(tmp_path) == ("570.9", "580.142")


def test_the_options_of_the_driver_are_read(tmp_path):
    found = posture.options(tmp_path)
    assert isinstance(found, CheckFault)
    write(tmp_path, {"proc/driver/nvidia/params": PARAMS})
    found = posture.options(tmp_path)
    assert not isinstance(found, CheckFault)
    assert found["InitializeSystemMemoryAllocations"] == "1"
    assert found["RegistryDwords"] == "RMFoo=1;RMBar=0x2"
    assert found["RegistryDwordsPerDevice"] == "pci=0000:3b:00.0;RMFoo=1"
    assert found["RmMsg"] == ""


def gpu(address, functions, vendor="0x10de"):
    place = f"sys/bus/pci/devices/{address}"
    return {f"{place}/vendor": f"{vendor}\n", f"{place}/sriov_numvfs": f"{functions}\n"}


def test_virtual_functions_or_the_vgpu_module_mean_virtual_machines(tmp_path):
    write(tmp_path, {**gpu("0000:3b:00.0", 0), **gpu("0000:5e:00.0", 8, vendor="0x8086")})
    write(tmp_path, {"sys/bus/pci/devices/0000:00:00.0/vendor": "0x10de\n"})
    assert posture.shared_with_guests(tmp_path) == ()
    write(tmp_path, gpu("0000:3b:00.0", 16))
    (tmp_path / "sys/module/nvidia_vgpu_vfio").mkdir(parents=True)
    assert posture.shared_with_guests(tmp_path) == (
        "module nvidia_vgpu_vfio is loaded",
        "0000:3b:00.0 has 16 virtual functions",
    )


def test_gpus_on_the_bus_are_found_without_a_driver(tmp_path):
    assert posture.on_bus(tmp_path) == ()
    devices = {"0000:17:00.0": ("0x10de", "0x030200"), "0000:18:00.0": ("0x10de", "0x068000"), "1": ("0x8086", "0x03")}
    for address, (vendor, kind) in devices.items():
        place = tmp_path / "sys/bus/pci/devices" / address
        place.mkdir(parents=True)
        (place / "vendor").write_text(f"{vendor}\n")
        (place / "class").write_text(f"{kind}\n")
    assert posture.on_bus(tmp_path) == ("0000:17:00.0",)


def test_without_a_list_of_devices_guests_are_unknown(tmp_path):
    assert isinstance(posture.shared_with_guests(tmp_path), CheckFault)
    write(tmp_path, gpu("0000:3b:00.0", "many"))
    assert isinstance(posture.shared_with_guests(tmp_path), CheckFault)


def test_a_gpu_whose_memory_is_a_node_is_found(tmp_path):
    assert posture.numa_gpus(tmp_path) == ()
    folder = "proc/driver/nvidia/gpus"
    write(tmp_path, {f"{folder}/0009:01:00.0/numa_status": "Node: 1\n", f"{folder}/0019:01:00.0/information": ""})
    assert posture.numa_gpus(tmp_path) == ("0009:01:00.0",)


def test_persistenced_is_there_when_its_socket_is(short_tmp):
    place = short_tmp / "run/nvidia-persistenced"
    assert posture.persistenced(short_tmp) is False
    place.mkdir(parents=True)
    (place / "socket").touch()
    assert posture.persistenced(short_tmp) is False
    (place / "socket").unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place / "socket"))
        assert posture.persistenced(short_tmp) is True


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["cgroup.controllers", "kubepods.slice/cgroup.procs"], "version 2"),
        (["memory/tasks", "systemd/tasks"], "version 1"),
        (["memory/tasks", "unified/cgroup.controllers"], "versions 1 and 2 side by side"),
        (["unified/cgroup.controllers"], "version 2, below unified"),
    ],
)
def test_the_version_of_control_groups_shows_in_their_files(tmp_path, files, expected):
    write(tmp_path, {f"sys/fs/cgroup/{name}": "" for name in files})
    assert posture.cgroups(tmp_path) == expected


def test_without_control_groups_their_version_is_unknown(tmp_path):
    assert isinstance(posture.cgroups(tmp_path), CheckFault)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    assert isinstance(posture.cgroups(tmp_path), CheckFault)


def test_this_machine_has_control_groups_and_room():
    assert isinstance(posture.cgroups(Path("/")), str)
    room = posture.room(Path("/tmp"))
    found = os.statvfs("/tmp")
    assert not isinstance(room, CheckFault)
    assert 0 <= room.free_bytes <= found.f_blocks * found.f_frsize
    assert room.free_files is None or 0 <= room.free_files <= found.f_files


def test_a_filesystem_without_inodes_has_no_count():
    # The kernel counts no files of processes.
    assert os.statvfs("/proc").f_files == 0
    room = posture.room(Path("/proc"))
    assert not isinstance(room, CheckFault)
    assert room.free_files is None


def test_free_space_of_a_missing_place_is_unknown(tmp_path):
    found = posture.room(tmp_path / "none")
    assert isinstance(found, CheckFault)
    assert found.absent


def test_a_pipe_or_a_loop_of_links_is_a_fault(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    before = descriptors.opened()
    for name in ("pipe", "loop", ".", "none", "none/deeper"):
        assert isinstance(safe_read.text(tmp_path / name), CheckFault)
    assert descriptors.opened() <= before


def test_a_file_of_absurd_size_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(safe_read, "LARGEST", 4)
    write(tmp_path, {"four": "1234", "five": "12345"})
    assert safe_read.text(tmp_path / "four") == "1234"
    assert isinstance(safe_read.text(tmp_path / "five"), CheckFault)


def test_a_link_that_leads_nowhere_is_something(tmp_path):
    (tmp_path / "link").symlink_to("/nowhere")
    assert safe_read.there(tmp_path / "link") is True
    assert safe_read.there(tmp_path / "none") is False
    (tmp_path / "loop").symlink_to("loop")
    assert isinstance(safe_read.there(tmp_path / "loop/below"), CheckFault)
