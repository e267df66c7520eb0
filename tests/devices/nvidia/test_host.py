"""Which driver is loaded is told by the kernel's files alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from scrubber.core.model import MemoryManager
from scrubber.devices.base import DeviceError
from scrubber.devices.nvidia.host import Host

OPEN = "NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs@u)  Tue Sep 23 09:55:41 UTC 2025"
CLOSED = "NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44 UTC 2024"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.sys_module.mkdir(parents=True)
    host.proc_driver.mkdir(parents=True)
    (host.proc_driver / "version").write_text(f"NVRM version: {OPEN}\nGCC version:  gcc version 12.2.0\n")
    return host


@pytest.mark.parametrize(("line", "version"), [(OPEN, "580.95.05"), (CLOSED, "470.256.02")], ids=["open", "closed"])
def test_the_version_of_either_kernel_module_is_read(host: Host, line: str, version: str) -> None:
    (host.proc_driver / "version").write_text(f"NVRM version: {line}\nGCC version:  gcc version 12.2.0\n")
    assert host.driver_version() == version


def test_only_a_reload_changes_the_instance_of_the_driver(host: Host) -> None:
    before = host.driver()
    (host.sys_module / "refcnt").write_text("7\n")
    host.sys_module.chmod(0o700)  # another time of change, as when the kernel makes the inode anew
    assert host.driver() == before
    assert before.startswith("nvidia 580.95.05 ")
    host.sys_module.rename(host.sys_module.with_name("gone"))
    host.sys_module.mkdir()
    assert host.driver() != before


@pytest.mark.parametrize("missing", ["proc/driver/nvidia/version", "sys/module/nvidia"])
def test_a_driver_that_is_not_loaded_is_an_error(host: Host, missing: str) -> None:
    (host.root / missing).rename(host.root / "away")
    with pytest.raises(DeviceError, match="cannot find the NVIDIA driver"):
        host.driver()


@pytest.mark.parametrize("said", [b"", b"NVRM version: none\n", b"GCC version:  gcc version 12.2.0\n", b"\xff\xfe"])
def test_a_missing_driver_version_is_an_error(host: Host, said: bytes) -> None:
    (host.proc_driver / "version").write_bytes(said)
    with pytest.raises(DeviceError, match=r"cannot (tell the driver's version|find the NVIDIA driver)"):
        host.driver()


OFF, DRIVER = "EnableUserNUMAManagement: 0\n", 'CoherentGPUMemoryMode: "driver"\n'
UNSET = 'CoherentGPUMemoryMode: ""\n'


@pytest.mark.parametrize(
    ("params", "files", "manager"),
    [
        pytest.param(OFF + DRIVER, ["information"], MemoryManager.DRIVER, id="the driver, on request"),
        pytest.param(OFF + UNSET, ["information"], MemoryManager.DRIVER, id="the driver, by its default"),
        pytest.param("EnableUserNUMAManagement: 1\n" + UNSET, ["numa_status"], MemoryManager.LINUX, id="Linux"),
        pytest.param(OFF + DRIVER, ["numa_status"], MemoryManager.LINUX, id="Linux, against the options"),
        pytest.param("EnableUserNUMAManagement: 1\n" + UNSET, ["information"], MemoryManager.UNKNOWN, id="not said"),
        pytest.param(OFF, ["information"], MemoryManager.UNKNOWN, id="a driver without this mode"),
        pytest.param(DRIVER, ["information"], MemoryManager.UNKNOWN, id="an option is hidden"),
        pytest.param(OFF + DRIVER, [], MemoryManager.UNKNOWN, id="the GPU is hidden"),
        pytest.param(None, ["numa_status"], MemoryManager.LINUX, id="Linux, the options are hidden"),
        pytest.param(None, ["information"], MemoryManager.UNKNOWN, id="the options are hidden"),
    ],
)
def test_the_drivers_files_say_who_manages_memory(host: Host, params, files, manager) -> None:
    if params is not None:
        (host.proc_driver / "params").write_text(params)
    for name in files:
        file = host.proc_driver / "gpus/0009:01:00.0" / name
        file.parent.mkdir(parents=True)
        file.touch()
    assert host.memory_manager("0009:01:00.0") is manager
