"""``autoclave doctor`` on a node with a driver of NVIDIA, made of files: each thing that is wrong, in its place."""

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from autoclave.cli import INTERRUPTED, NOT_CLEAN
from autoclave.doctor import gathering
from autoclave.doctor.facts import process_facts
from demo.standins import checkpoint
from scrubber.cuda import warmth
from scrubber.ground import unix_sockets
from tests.cli.doctor_run import HERE, KUBELET, NVIDIA, levels, only
from tests.patience import WITHIN

OPTIONS = "RegistryDwords: {}\nRegistryDwordsPerDevice: \nInitializeSystemMemoryAllocations: 1\n"
TOOLKIT = "etc/nvidia-container-runtime/config.toml"
GRANTS = "accept-nvidia-visible-devices-envvar-when-unprivileged = {}\n"


@pytest.fixture
def host(short_tmp, monkeypatch):
    """The files of a node with a driver of NVIDIA on which all is well, and this process the only one that it has."""
    (short_tmp / "proc").mkdir()
    (short_tmp / "proc/self").symlink_to("/proc/self")
    (short_tmp / "proc" / str(os.getpid())).symlink_to("/proc/self")
    monkeypatch.setattr(gathering, "PROC", short_tmp / "proc")
    monkeypatch.setattr(warmth, "missing", lambda: None)
    monkeypatch.setattr(process_facts, "INITIAL_PID_NAMESPACE", Path("/proc/self/ns/pid").stat().st_ino)
    files = {
        "sys/module/nvidia/version": "580.142\n",
        "sys/bus/pci/devices/0000:3b:00.0/vendor": "0x10de\n",
        "sys/fs/cgroup/cgroup.controllers": "",
        "proc/driver/nvidia/params": OPTIONS.format('""'),
        TOOLKIT: GRANTS.format("false"),
        "etc/cdi/nvidia.yaml": "kind: nvidia.com/gpu\ndevices: [{name: GPU-1}]\n",
    }
    root = short_tmp / "host"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "run/nvidia-persistenced").mkdir(parents=True)
    (root / "dev").mkdir()
    os.mkfifo(root / "dev/kmsg")
    with socket.socket(socket.AF_UNIX) as persistenced:
        persistenced.bind(str(root / "run/nvidia-persistenced/socket"))
        yield root


def test_the_driver_is_checked_while_no_service_answers(examine, kubelet, short_tmp, host):
    _, found = examine(kubelet.directory, short_tmp / "nowhere", host)
    assert set(found) == KUBELET | (NVIDIA - {"privileges", "reset", "ecc"}) | HERE | {"service"}
    assert {name for name, level in levels(found).items() if level != "ok"} == {"service", "run-dir"}


@pytest.mark.parametrize(
    ("file", "text", "finding"),
    [
        (
            "proc/driver/nvidia/params",
            OPTIONS.format('"RMDisableScrubOnFree=1"'),
            ("scrub-on-free", "broken", "is set"),
        ),
        ("sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs", "4", ("vgpu-host", "broken", "4 virtual functions")),
        ("usr/lib64/libnvidia-ml.so.590.10", "", ("driver", "broken", "590.10")),
        (TOOLKIT, GRANTS.format("true"), ("container-toolkit", "broken", "is not false")),
        ("etc/cdi/nvidia.yaml", "{", ("cdi", "warning", "it is not a CDI specification")),
        ("sys/fs/cgroup/cgroup.controllers", None, ("cgroups", "broken", "is empty")),
        ("run/nvidia-persistenced/socket", None, ("persistence", "warning", "does not run")),
        ("dev/kmsg", None, ("kernel-log", "warning", "no such file or directory")),
    ],
)
def test_each_fault_of_the_driver_is_found_in_its_file(examine, kubelet, short_tmp, host, file, text, finding):
    name, level, message = finding
    if text is None:
        (host / file).unlink()
    else:
        (host / file).parent.mkdir(parents=True, exist_ok=True)
        (host / file).write_text(text)
    _, found = examine(kubelet.directory, short_tmp / "nowhere", host)
    assert message in only(found, name, level)


def test_the_multi_process_service_is_found_while_it_runs(examine, kubelet, short_tmp, host):
    program = short_tmp / "nvidia-cuda-mps-control"
    shutil.copy("/bin/cat", program)
    with subprocess.Popen([program], stdin=subprocess.PIPE) as running:
        (short_tmp / "proc" / str(running.pid)).symlink_to(f"/proc/{running.pid}")
        _, found = examine(kubelet.directory, short_tmp / "nowhere", host)
        assert f"process {running.pid}" in only(found, "mps", "broken")
        running.communicate()
    _, found = examine(kubelet.directory, short_tmp / "nowhere", host)
    only(found, "mps", "ok")


def test_invalid_files_are_reported_and_do_not_stop_the_checks(examine, kubelet, short_tmp, host):
    for file in [path for path in host.rglob("*") if path.is_file()]:
        file.write_bytes(b"\xff\x00\x1b[2J{[:=" * 9)
    (host / "etc/cdi").joinpath(os.fsdecode(b"\xff.json")).write_text("{}")
    (host / "var").mkdir()
    (host / "var/run").symlink_to("run")
    code, found = examine(kubelet.directory, short_tmp / "nowhere", host)
    assert (code, set(found)) == (1, KUBELET | (NVIDIA - {"privileges", "reset", "ecc"}) | HERE | {"service"})
    assert {levels(found)[name] for name in ("scrub-on-free", "container-toolkit")} <= {
        "broken",
        "broken broken broken",
    }
    assert all(letter.isprintable() for those in found.values() for it in those for letter in it["text"])


def test_waiting_names_the_other_plugin_and_ends_with_it(kubelet, short_tmp):
    rival = kubelet.listen("nvidia-gpu.sock")
    kubelet.listen("port.sock")  # of another vendor
    with waiting(kubelet.directory, short_tmp) as process:
        assert "serves at" in process.stdout.readline() + process.stdout.readline()
        rival.close()
        assert "no other plugin" in process.communicate(timeout=WITHIN)[0]
        assert process.returncode == 0


def test_waiting_ends_at_a_signal(kubelet, short_tmp):
    kubelet.listen("nvidia-gpu.sock")
    with waiting(kubelet.directory, short_tmp) as process:
        process.stdout.readline()
        process.terminate()
        process.communicate(timeout=WITHIN)
        assert process.returncode == INTERRUPTED


def test_a_wait_that_is_over_is_a_no(kubelet, short_tmp):
    kubelet.listen("nvidia-gpu.sock")
    with waiting(kubelet.directory, short_tmp, "1ms") as process:
        assert "1 of 1 findings are broken" in process.communicate(timeout=WITHIN)[1]
        assert process.returncode == NOT_CLEAN


@contextmanager
def waiting(kubelet_dir, run_dir, patience="60s"):
    words = ("--only=rival-plugin", f"--wait={patience}", f"--kubelet-dir={kubelet_dir}", f"--run-dir={run_dir}")
    command = [sys.executable, "-m", "autoclave", "doctor", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("error", [errno.EACCES, errno.EPERM, errno.EPROTOTYPE, errno.ENOTCONN])
def test_an_unreadable_socket_counts_as_another_plugin(examine, kubelet, short_tmp, monkeypatch, error):
    """SELinux, a mode, a socket of another kind: none of them proves that no plugin is there."""
    kubelet.listen("nvidia-gpu.sock")
    connect_error = unix_sockets.connect_error
    refused = OSError(error, os.strerror(error))
    monkeypatch.setattr(
        unix_sockets, "connect_error", lambda path: refused if path.name.startswith("nv") else connect_error(path)
    )
    code, found = examine(kubelet.directory, short_tmp)
    assert (code, "cannot tell whether" in only(found, "rival-plugin", "broken")) == (1, True)


def test_a_plugin_with_a_full_socket_backlog_counts_as_running(examine, kubelet, short_tmp):
    """It listens and is busy: a connection fails at once, as without a listener."""
    path = kubelet.directory / "nvidia-gpu.sock"
    with ExitStack() as open_ones:
        rival = open_ones.enter_context(socket.socket(socket.AF_UNIX))
        rival.bind(str(path))
        rival.listen(0)
        while unix_sockets.connect_error(path) is None:
            waiting = open_ones.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            waiting.connect_ex(str(path))
        code, found = examine(kubelet.directory, short_tmp)
        assert (code, "temporarily unavailable" in only(found, "rival-plugin", "broken")) == (1, True)


def test_a_time_sliced_gpu_belongs_to_another_plugin(examine, kubelet, short_tmp):
    checkpoint.write(kubelet.directory, [], {"nvidia.com/gpu": ["GPU-1::0", "GPU-1::1"]})
    _, found = examine(kubelet.directory, short_tmp)
    assert "GPU-1::1" in only(found, "rival-plugin", "broken")


def test_a_read_only_kubelet_directory_is_a_warning_without_plugin(examine, kubelet, short_tmp, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    _, found = examine(kubelet.directory, short_tmp)
    only(found, "plugin-dir", "ok")
    kubelet.plugin.close()
    _, found = examine(kubelet.directory, short_tmp)
    assert str(kubelet.directory) in only(found, "plugin-dir", "warning")


def test_the_host_root_can_come_from_the_environment(autoclave, kubelet, short_tmp, host):
    run = autoclave("doctor", "-o", "json", "--kubelet-dir", kubelet.directory, "--run-dir", short_tmp,
                    AUTOCLAVE_HOST_ROOT=str(host))  # fmt: skip
    assert "driver" in {it["name"] for it in json.loads(run.stdout)["findings"]}
