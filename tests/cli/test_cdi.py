"""``autoclave cdi``: a real chroot, a shell in it that prints what nvidia-ctk would, and CDI directories."""

import json
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from autoclave.cli.verbs import cdi
from tests import host_root
from tests.host_root import BY_UUID, HostRoot, specification

SEE_IT_FAIL = "run `nvidia-ctk cdi generate` on the node and read its error\n"
FLAGS = ["cdi", "generate", "--format=json", "--device-name-strategy=uuid"]
pytestmark = host_root.takes_chroot


class Node(HostRoot):
    """The host, its CDI directories, and the verb on it."""

    def __init__(self, root, autoclave) -> None:
        super().__init__(root / "host")
        self.static, self.dynamic = root / "etc/cdi", root / "run/cdi"
        self.file = self.static / "autoclave-nvidia.json"
        self._run = autoclave

    def write(self, *flags):
        places = [f"--cdi-dir={place}" for place in (self.static, self.dynamic)]
        return self._run("cdi", f"--host-root={self.root}", *places, *flags)

    def named(self):
        return [device["name"] for device in json.loads(self.file.read_text())["devices"]]

    def other(self, directory, *names, text=None):
        (directory).mkdir(parents=True, exist_ok=True)
        file: Path = directory / "nvidia.yaml"
        file.write_text(specification(*names) if text is None else text)
        return file


@pytest.fixture
def node(tmp_path, autoclave):
    return Node(tmp_path, autoclave)


def test_the_file_names_what_nvidia_ctk_names(node):
    run = node.write()
    assert (run.exit_code, run.stdout) == (0, f"{node.file} is new: it names 2 devices by UUID\n")
    assert json.loads(node.file.read_text()) == json.loads(specification(*BY_UUID))
    assert (node.file.stat().st_mode & 0o777, [*node.static.iterdir()]) == (0o644, [node.file])
    assert node.asked() == FLAGS


def test_an_equal_specification_leaves_the_file_alone(node):
    node.write()
    before, run = node.file.stat(), node.write()
    assert run.stdout == f"{node.file} has not changed: it names 2 devices by UUID\n"
    after = node.file.stat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)
    node.say(specification("MIG-1"))
    assert node.write().stdout == f"{node.file} is new: it names 1 device by UUID\n"
    assert node.named() == ["MIG-1"]


@pytest.mark.parametrize("place", ["usr/local/nvidia/toolkit", "run/nvidia/driver/usr/bin"])
def test_driver_root_and_kind_become_flags(node, place):
    (node.root / "usr/bin/nvidia-ctk").unlink()
    node.install(host_root.SAYS, f"{place}/nvidia-ctk")
    node.say(specification("GPU-1", kind="site.example/accelerator"))
    assert node.write("--driver-root=/run/nvidia/driver", "--cdi-kind=site.example/accelerator").exit_code == 0
    assert node.asked() == [*FLAGS, "--driver-root=/run/nvidia/driver", "--vendor=site.example",
                                "--class=accelerator"]  # fmt: skip


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (specification("0", "1", "GPU-1", "all"), "it names 0, 1, and not by UUID; update NVIDIA's container toolkit"),
        (specification("all"), "it names no GPU; see whether `nvidia-smi -L` shows one"),
        (specification("GPU-1", kind="nvidia.com/pgpu"), "it is of the kind nvidia.com/pgpu; update"),
        (specification(*BY_UUID)[:-1], "it is not a CDI specification (JSONDecodeError); update"),
        ("", "it is not a CDI specification"),
        (specification("GPU-../../1"), "it names GPU-../../1, and not by UUID"),
        (specification("GPU-1\x1b[2J"), r"it names GPU-1\u001b[2J, and not by UUID"),
        (specification(*map(str, range(100))), "it names 0, 1, 10, 11, 12 and 95 more, and not by UUID"),
        (specification("GPU-1", kind="a\x1b/b"), r"it is of the kind a\u001b/b"),
    ],
    ids=[
        "by index",
        "nothing but all",
        "another kind",
        "cut off",
        "empty",
        "a path",
        "control characters",
        "many",
        "a kind with control characters",
    ],
)
def test_a_wrong_output_replaces_no_file(node, output, why):
    node.write()
    before = node.file.read_bytes()
    node.say(output)
    run = node.write()
    assert (run.exit_code, run.stdout, node.file.read_bytes()) == (1, "", before)
    assert run.stderr.startswith("autoclave: cannot use the output of nvidia-ctk: ")
    assert why in run.stderr


def test_a_failure_is_reported_with_its_words(node):
    node.install(
        """echo 'level=info msg="Using a"' >&2; echo 'level=error msg="failed to \\"open\\" NVML"' >&2; exit 1"""
    )
    run = node.write()
    assert (run.exit_code, node.file.exists()) == (1, False)
    assert (
        run.stderr
        == 'autoclave: nvidia-ctk ended with status 1: failed to "open" NVML; nothing was written; ' + SEE_IT_FAIL
    )


def test_without_nvidia_ctk_the_remedy_is_named(node, monkeypatch):
    monkeypatch.setattr(cdi, "_PLACES", ("/usr/local/sbin", f"{node.root}/usr/sbin"))  # not this machine's
    (node.root / "usr/bin/nvidia-ctk").unlink()
    for flags in ((), ("--host-root=/",)):
        run = node.write("--driver-root=/run/nvidia/driver", *flags)
        assert run.exit_code == 1
        assert "cannot run nvidia-ctk, which is in none of /usr/local/sbin, " in run.stderr
        assert "; install NVIDIA's container toolkit there, or write the specification yourself" in run.stderr


@pytest.fixture
def without_group(monkeypatch):
    """What the command leaves running would hold its control group."""
    monkeypatch.setattr(cdi, "_inside_fence", nullcontext)


@pytest.mark.usefixtures("without_group")
def test_an_nvidia_ctk_that_hangs_is_killed_with_its_children(node):
    """Their end of the pipe is closed, or it would say that it cannot be killed."""
    os.mkfifo(node.root / "never")
    node.install("(read -r _ < /never) | read -r _")
    run = node.write("--timeout=300ms")
    assert (run.exit_code, run.stdout, node.file.exists()) == (5, "", False)
    assert "nvidia-ctk did not end within 0.3 s and was killed; see whether `nvidia-smi -L` answers" in run.stderr


@pytest.mark.parametrize("to", ["", " >&2"], ids=["output", "errors"])
def test_an_output_without_end_is_cut_off(node, monkeypatch, to):
    monkeypatch.setattr(cdi, "LARGEST", 1000)
    node.install(f"while echo 123456789012345678901234567890; do :; done{to}")
    run = node.write()
    assert (run.exit_code, run.stdout, node.file.exists()) == (1, "", False)
    assert (
        run.stderr
        == "autoclave: nvidia-ctk printed more than 1000 bytes and was killed; nothing was written; " + SEE_IT_FAIL
    )


@pytest.mark.usefixtures("without_group")
def test_a_process_that_holds_the_output_open_is_reported(node, monkeypatch):
    """It has left the group of nvidia-ctk, so it is not killed with it."""
    os.mkfifo(never := node.root / "never")
    monkeypatch.setattr(cdi, "_command", lambda *_: ("sh", "-c", f"setsid sh -c 'read -r _ < {never}' &"))
    run = node.write("--host-root=/", "--timeout=300ms")
    os.close(os.open(never, os.O_RDWR))  # ends the process
    assert (run.exit_code, run.stdout, node.file.exists()) == (5, "", False)
    assert "nvidia-ctk has ended, and a process that it started still has its output open after 0.3 s" in run.stderr


@pytest.mark.parametrize("place", ["static", "dynamic"])
def test_gpus_that_another_file_names_are_left_to_it(node, place):
    """Container runtimes refuse a device that two files of a directory name."""
    other = node.other(getattr(node, place), *BY_UUID)
    remedy = "generate that again after each driver update, or remove it and run this again"
    already = f"each GPU is named by UUID in {other} already; {remedy}\n"
    assert node.write().stdout == f"wrote nothing: {already}"
    other.unlink()
    node.write()
    node.other(other.parent, *BY_UUID)
    assert node.write().stdout == f"removed {node.file}: {already}"
    assert not node.file.exists()


def test_no_device_is_named_twice(node):
    node.other(node.static, "0", "GPU-1", "all")
    assert (node.write().exit_code, node.named()) == (0, ["GPU-2"])


@pytest.mark.parametrize("text", ["kind: nvidia.com/gpu\ndevices: 7\n", specification(*BY_UUID, kind="a.b/gpu")])
def test_other_kinds_and_broken_files_take_no_name(node, text):
    other = node.other(node.static, text=text)
    run = node.write()
    assert (run.exit_code, node.named()) == (0, list(BY_UUID))
    assert (f"autoclave: cannot use {other}: it is not a CDI specification" in run.stderr) == ("7" in text)


def test_a_directory_that_others_write_to_is_refused(node):
    node.static.mkdir(parents=True)
    node.static.chmod(0o777)
    run = node.write()
    assert (run.exit_code, node.file.exists()) == (2, False)
    assert f"cannot write {node.file}: other users may write to it" in run.stderr
