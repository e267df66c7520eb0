"""Nodes without NVIDIA's container toolkit: the scrubber takes the driver's libraries from the driver's root."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import generate
from tests.deploy import manifests

CASE = "gpu cluster"
SCRIPT = generate.CHART / "files/link-driver.sh"
DEBIAN, RED_HAT = "usr/lib/x86_64-linux-gnu", "usr/lib64"
LIBRARIES = {  # and the names by which programs load them
    "libnvidia-ml.so.580.95.05": "libnvidia-ml.so.1",
    "libcuda.so.580.95.05": "libcuda.so.1",
    "libnvidia-ptxjitcompiler.so.580.95.05": "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so.580.95.05": "libnvidia-nvvm.so.4",
    "libnvidia-gpucomp.so.580.95.05": None,
}
LINKED = {"nvidia-smi", "persistence", *LIBRARIES, *filter(None, LIBRARIES.values())}


def driver(root, folder):
    """A node with the driver, and with a C library that no program can use."""
    place = root / folder
    place.mkdir(parents=True)
    for name, loaded_as in LIBRARIES.items():
        (place / name).touch()
        if loaded_as:
            (place / loaded_as).symlink_to(name)
    for name in ("libc.so.6", "libm.so.6", "libGLX_nvidia.so.0", "libcuda.so"):
        (place / name).write_text("none")
    (root / "usr/bin").mkdir()
    (root / "usr/bin/nvidia-smi").touch()
    return place


def link(root, links):
    """Run the init container's own command with directories of the test in the places of its own."""
    one = manifests.container(CASE, "link-driver (scrubber)")
    *places, socket = one["args"]
    assert places == ["/driver", "/driver/links"]
    links.mkdir(exist_ok=True)
    return subprocess.run([*one["command"], root, links, socket], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("folder", [DEBIAN, RED_HAT])
def test_only_what_the_driver_brings_is_linked(tmp_path, folder):
    place = driver(tmp_path / "root", folder)
    run = link(tmp_path / "root", tmp_path / "links")
    assert (run.returncode, run.stdout + run.stderr) == (0, "")
    assert {path.name for path in (tmp_path / "links").iterdir()} == LINKED
    assert (tmp_path / "links/libcuda.so.1").resolve() == place / "libcuda.so.580.95.05"


def test_a_restarted_pod_links_the_new_driver_only(tmp_path):
    place = driver(tmp_path / "root", RED_HAT)
    link(tmp_path / "root", tmp_path / "links")
    for old in list(place.glob("*.580.95.05")):
        old.rename(str(old).replace("580.95.05", "595.71.05"))
    for loaded_as in (name for name in LIBRARIES.values() if name):
        (place / loaded_as).unlink()
        (place / loaded_as).symlink_to(f"{loaded_as.rpartition('.so.')[0]}.so.595.71.05")
    assert link(tmp_path / "root", tmp_path / "links").returncode == 0
    assert {path.name for path in (tmp_path / "links").iterdir()} == {
        name.replace("580.95.05", "595.71.05") for name in LINKED
    }


@pytest.mark.parametrize("missing", ["libnvidia-ml.so.1", "libcuda.so.1"])
def test_a_missing_library_is_named_and_nothing_starts(tmp_path, missing):
    (driver(tmp_path / "root", DEBIAN) / missing).unlink()
    run = link(tmp_path / "root", tmp_path / "links")
    assert run.returncode == 1
    assert f"found no {missing} in the driver's root: install NVIDIA's driver, wait" in run.stderr
    assert list((tmp_path / "links").iterdir()) == []


def test_a_program_loads_the_driver_and_its_own_c_library(tmp_path):
    """With the driver's own directory in LD_LIBRARY_PATH it would load the C library of the node, and not start."""
    place = driver(tmp_path / "root", DEBIAN)
    mapped = re.search(r"/\S+/libm\.so\S*", Path("/proc/self/maps").read_text())
    assert mapped
    shutil.copy(mapped[0], place / "libnvidia-ml.so.580.95.05")
    assert link(tmp_path / "root", tmp_path / "links").returncode == 0
    command = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libnvidia-ml.so.1').cos; print('loaded')"]
    runs = [
        subprocess.run(
            command, env=os.environ | {"LD_LIBRARY_PATH": str(folder)}, capture_output=True, text=True, check=False
        )
        for folder in (tmp_path / "links", place)
    ]
    assert [run.stdout for run in runs] == ["loaded\n", ""]
    assert "libc.so.6" in runs[1].stderr or "libm.so.6" in runs[1].stderr


def test_the_scrubber_finds_the_links_beside_what_its_image_has():
    one = manifests.container(CASE, "scrubber")
    env = {it["name"]: it.get("value") for it in one["env"]}
    *_, path = re.findall(r"^ENV PATH=(\S+)", (generate.ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE)
    assert (env["LD_LIBRARY_PATH"], env["PATH"]) == ("/driver/links", f"{path}:/driver/links")
    assert not env.keys() & {"NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_MIG_CONFIG_DEVICES"}


@pytest.mark.parametrize(("root", "there"), [("/", "run"), ("/run/nvidia/driver", "run/nvidia/driver/run")])
def test_a_reset_finds_the_socket_of_nvidia_persistenced(tmp_path, root, there):
    """The socket may come later. The link leads to it for a doctor in another container too: it is relative."""
    pod = dict(manifests.pods(manifests.loaded({"scrubber": {"privileged": True, "driverRoot": root}})))["scrubber"]
    [init] = [it for it in pod["initContainers"] if it["name"] == "link-driver"]
    [mount] = [it for it in pod["containers"][0]["volumeMounts"] if it["mountPath"] == "/run/nvidia-persistenced"]
    driver(tmp_path / "driver", DEBIAN)
    links = tmp_path / "links"
    links.mkdir()
    subprocess.run([*init["command"], tmp_path / "driver", links, init["args"][2]], check=True)
    mounted = tmp_path / "run/nvidia-persistenced"
    mounted.parent.mkdir()
    (links / mount["subPath"]).rename(mounted)
    socket = tmp_path / "host" / there / "nvidia-persistenced/socket"
    socket.parent.mkdir(parents=True)
    socket.touch()
    assert (mounted / "socket").resolve() == socket
    assert (mount["name"], mount["readOnly"]) == ("driver-links", True)


def test_the_drivers_files_are_mounted_read_only():
    pod = dict(manifests.pods(CASE))["scrubber"]
    [host_path] = [it["hostPath"] for it in pod["volumes"] if it["name"] == "driver"]
    assert host_path == {"path": "/run/nvidia/driver/usr", "type": "Directory"}
    mounts = [it for one in (*pod["initContainers"], *pod["containers"]) for it in one["volumeMounts"]]
    assert [it["readOnly"] for it in mounts if it["name"] == "driver"] == [True, True]
    assert "runtimeClassName" not in pod


def test_the_scrubber_gets_the_device_nodes_of_a_driver_container(tmp_path):
    """They may be missing in /dev of the node, from which a privileged container gets its own."""
    pod = dict(manifests.pods(CASE))["scrubber"]
    assert [it["hostPath"]["path"] for it in pod["volumes"] if it["name"] == "host-dev"] == ["/run/nvidia/driver/dev"]
    theirs, ours, program = (tmp_path / name for name in ("theirs", "ours", "autoclave"))
    (theirs / "nvidia-caps").mkdir(parents=True)
    for name in ("nvidia0", "nvidiactl", "nvidia-caps/nvidia-cap1", "null"):
        (theirs / name).symlink_to(name)
    ours.mkdir()
    (ours / "nvidiactl").touch()
    program.write_text('#!/bin/sh\nshift && echo "$@"\n')
    program.chmod(0o755)
    shell, flag, script, name = pod["containers"][0]["command"]
    script = script.replace("/host/dev/", f"{theirs}/").replace(" /dev ", f" {ours} ")
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [shell, flag, script, name, "scrubber", "--a=b c"]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("--a=b c\n", "")
    assert {path.name for path in ours.iterdir()} == {"nvidia0", "nvidiactl", "nvidia-caps"}
    assert (ours / "nvidia0").is_symlink()
    assert not (ours / "nvidiactl").is_symlink()


def test_a_driver_of_the_node_needs_no_copied_device_nodes():
    pod = dict(manifests.pods(manifests.loaded({"scrubber": {"privileged": True, "driverRoot": "/"}})))["scrubber"]
    places = {it["name"]: it["hostPath"]["path"] for it in pod["volumes"] if "hostPath" in it}
    assert (places["driver"], places["host-dev"], pod["containers"][0]["command"]) == ("/usr", "/dev", ["autoclave"])
