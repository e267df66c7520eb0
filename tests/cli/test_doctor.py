"""``autoclave doctor``: each fact is found where a node has it, and the verb reports, selects, waits and judges."""

import asyncio
import csv
import errno
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from autoclave.cli import INTERRUPTED, NOT_CLEAN
from autoclave.cli.output import text_tables
from autoclave.cli.verbs import doctor
from autoclave.doctor import node_facts
from autoclave.doctor.facts import process_facts, service_facts
from autoclave.doctor.finding import Finding, Level
from autoclave.doctor.findings import all_checks
from demo import stage
from demo.standins import checkpoint
from demo.standins.api_server import ApiServer
from demo.standins.holdings import DeviceHolding
from ground import unix_sockets
from plugin.dra import resource_slices
from scrubber.cuda import cupy_loading
from tests.doctor.nodes import NVIDIA, at
from tests.live import Service
from tests.patience import WITHIN

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"
SOMETIMES = {"feature-gates", "claims"}  # only with --driver-name
EVERYTHING = {*all_checks.NAMES} - NVIDIA - SOMETIMES
ALONE = {"run-dir", "clock", "file-watches"}  # neither of the service nor of the kubelet
KUBELET = {"kubelet-dir", "kubelet", "checkpoint", "double-allocation", "plugin", "plugin-dir", "rival-plugin"}
SEEN_WITHOUT_SERVICE = KUBELET | (NVIDIA - {"privileges", "mig-driver", "reset", "ecc"}) | ALONE | {"service"}
OPTIONS = "RegistryDwords: {}\nRegistryDwordsPerDevice: \nInitializeSystemMemoryAllocations: 1\n"
TOOLKIT = "etc/nvidia-container-runtime/config.toml"
GRANTS = "accept-nvidia-visible-devices-envvar-when-unprivileged = {}\n"
FILES = {
    "sys/module/nvidia/version": "580.142\n",
    "sys/bus/pci/devices/0000:3b:00.0/vendor": "0x10de\n",
    "sys/fs/cgroup/cgroup.controllers": "",
    "proc/driver/nvidia/params": OPTIONS.format('""'),
    TOOLKIT: GRANTS.format("false"),
    "etc/cdi/nvidia.yaml": "kind: nvidia.com/gpu\ndevices: [{name: GPU-1}]\n",
}
Findings = dict[str, list[dict[str, str]]]


class Node:
    """The directory of a kubelet with live sockets and a checkpoint; the host has no driver unless it is given one."""

    def __init__(self, root: Path, alive: ExitStack, autoclave) -> None:
        self.root, self.kubelet_dir, self.run_dir, self.host = root, root / "kubelet", root / "run", root / "host"
        self._alive, self._autoclave = alive, autoclave
        (self.kubelet_dir / "autoclave").mkdir(parents=True)
        self.run_dir.mkdir(mode=0o700)
        self.kubelet = self.listen("kubelet.sock")
        self.plugin = self.listen("autoclave/nvidia.com_gpu.sock")
        self.hold()

    def listen(self, name):
        found = self._alive.enter_context(socket.socket(socket.AF_UNIX))
        found.bind(str(self.kubelet_dir / name))
        found.listen()
        return found

    def hold(self, *held):
        """Pods with a device each."""
        entries = [((pod, "main", name), DeviceHolding({-1: (device,)}, b"")) for pod, name, device in held]
        checkpoint.write(self.kubelet_dir, entries, {"nvidia.com/gpu": []})

    def doctor(self, *flags, **variables):
        places = {"--kubelet-dir": self.kubelet_dir, "--run-dir": self.run_dir, "--host-root": self.host}
        return self._autoclave("doctor", *(word for pair in places.items() for word in pair), *flags, **variables)

    def examine(self, *flags: str) -> tuple[int, Findings]:
        """The exit code and the findings of one run, by name."""
        run = self.doctor("-o", "json", *flags)
        found: Findings = {}
        for it in json.loads(run.stdout)["findings"]:
            found.setdefault(it["name"], []).append(it)
        return run.exit_code, found

    def only(self, name, level):
        """The text of the one finding of this name; it has a remedy exactly if the level is not ok."""
        _, found = self.examine()
        return only(found, name, level)


def levels(found):
    return {name: " ".join(sorted({it["level"] for it in those})) for name, those in found.items()}


def only(found, name, level):
    [it] = found[name]
    assert (it["level"], bool(it["remedy"])) == (level, level != "ok")
    return it["text"]


@pytest.fixture
def node(short_tmp, autoclave):
    with ExitStack() as alive:
        yield Node(short_tmp, alive, autoclave)


@pytest.fixture
def driven(node, monkeypatch):
    """The same with a driver of NVIDIA on which all is well, and this process the only one that the node has."""
    (node.root / "proc").mkdir()
    (node.root / "proc/self").symlink_to("/proc/self")
    (node.root / "proc" / str(os.getpid())).symlink_to("/proc/self")
    monkeypatch.setattr(node_facts, "PROC", node.root / "proc")
    monkeypatch.setattr(cupy_loading, "missing", lambda: None)
    monkeypatch.setattr(process_facts, "INITIAL_PID_NAMESPACE", Path("/proc/self/ns/pid").stat().st_ino)
    for name, text in FILES.items():
        write(node.host / name, text)
    (node.host / "run/nvidia-persistenced").mkdir(parents=True)
    (node.host / "dev").mkdir()
    os.mkfifo(node.host / "dev/kmsg")
    with socket.socket(socket.AF_UNIX) as persistenced:
        persistenced.bind(str(node.host / "run/nvidia-persistenced/socket"))
        yield node


def write(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def start(node):
    """Start a service on the node, which is stopped in the end."""
    running: list[Service] = []

    def start(*flags: object) -> Service:
        running.append(Service(node.root, 1, *flags))
        return running[-1]

    yield start
    for service in running:
        if service.process.poll() is None:
            service.stop()


async def test_a_node_is_healthy_until_plugin_and_kubelet_are_killed(node):
    story = stage.Stage(1, memory="1MiB")
    try:
        await story.start()
        await story.start_node()
        await story.settled(0, lambda device: device.state == "clean")
        node.kubelet_dir, node.run_dir = story.kubelet_dir, story.root / "run"
        code, found = await asyncio.to_thread(node.examine)
        fence = "warning"  # an ordinary user has none, and elsewhere it stands below a group of the stage
        assert (code, levels(found)) == (0, dict.fromkeys(EVERYTHING, "ok") | {"fence": fence})
        await story.plugin.end(signal.SIGKILL)
        code, found = await asyncio.to_thread(node.examine)
        assert (code, only(found, "plugin", "broken").endswith(".sock: connection refused")) == (1, True)
        assert levels(found)["kubelet"] == "ok"
        await story.kubelet.kill()
        code, found = await asyncio.to_thread(node.examine)
        assert (code, "accepts no connections at" in only(found, "kubelet", "broken")) == (1, True)
    finally:
        await story.clear_away(keep=False)


def test_a_missing_service_is_one_finding_among_the_others(driven):
    driven.run_dir.rmdir()
    code, found = driven.examine()
    assert (code, set(found)) == (1, SEEN_WITHOUT_SERVICE)
    assert {name for name, level in levels(found).items() if level != "ok"} == {"service", "run-dir"}
    for name in ("service", "run-dir"):
        assert str(driven.run_dir) in only(found, name, "broken")


def no_kubelet_dir(node):
    node.kubelet_dir = node.root / "none"


def link_as_run_dir(node):
    node.run_dir.rmdir()
    node.run_dir.symlink_to(node.kubelet_dir)


def no_plugin_dir(node):
    shutil.rmtree(node.kubelet_dir / "autoclave")


def file_as_plugin_dir(node):
    no_plugin_dir(node)
    (node.kubelet_dir / "autoclave").touch()


def two_pods(node):
    node.hold(*((pod, "nvidia.com/gpu", "GPU-1") for pod in ("pod-2", "pod-1", "pod-1")))


def time_slices(node):
    checkpoint.write(node.kubelet_dir, [], {"nvidia.com/gpu": ["GPU-1::0", "GPU-1::1"]})


def too_long(node):
    node.kubelet_dir = node.root / ("x" * 120)
    node.kubelet_dir.mkdir()


def half_an_entry(node):
    (node.kubelet_dir / checkpoint.NAME).write_text('{"Data": {"PodDeviceEntries": [{"PodUID": ""}]}}')


FAULTS = {
    "no kubelet directory": (no_kubelet_dir, "kubelet-dir", "broken", "no such file or directory"),
    "a kubelet that was killed": (lambda it: it.kubelet.close(), "kubelet", "broken", "connection refused"),
    "no socket of the kubelet": (
        lambda it: (it.kubelet_dir / "kubelet.sock").unlink(), "kubelet", "broken", "no such file or directory",
    ),
    "a path too long for a socket": (too_long, "kubelet", "broken", "af_unix path too long"),
    "no checkpoint": (
        lambda it: (it.kubelet_dir / checkpoint.NAME).unlink(), "checkpoint", "warning", "no checkpoint yet",
    ),
    "half an entry": (half_an_entry, "checkpoint", "broken", "it does not have the format of a checkpoint"),
    "two pods on a GPU": (two_pods, "double-allocation", "broken", "gave GPU-1 to several pods at once: pod-1, pod-2"),
    "no directory of the plugin": (no_plugin_dir, "plugin", "broken", "no device plugin serves"),
    "a file as directory of the plugin": (file_as_plugin_dir, "plugin", "broken", "not a directory"),
    "no socket of the plugin": (
        lambda it: (it.kubelet_dir / "autoclave/nvidia.com_gpu.sock").unlink(), "plugin", "broken", "no device plugin",
    ),
    "a plugin that was killed": (lambda it: it.plugin.close(), "plugin", "broken", "connection refused"),
    "another plugin": (lambda it: it.listen("nvidia-gpu.sock"), "rival-plugin", "broken", "serves at"),
    "time slices": (time_slices, "rival-plugin", "broken", "GPU-1::1"),
    "a link as run directory": (link_as_run_dir, "run-dir", "broken", "it is not a directory"),
    "a run directory for all": (lambda it: it.run_dir.chmod(0o710), "run-dir", "broken", "other users may write to"),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "name", "level", "words"), FAULTS.values(), ids=FAULTS)
def test_each_fault_of_the_kubelets_directory_is_found(node, spoil, name, level, words):
    spoil(node)
    _, found = node.examine()
    assert words in only(found, name, level)
    if name == "kubelet-dir":
        assert set(found) == {"service", "kubelet-dir", *ALONE}
    if name == "checkpoint":
        assert "double-allocation" not in found


@pytest.mark.parametrize(
    ("file", "text", "name", "level", "words"),
    [
        ("proc/driver/nvidia/params", OPTIONS.format('"RMDisableScrubOnFree=1"'), "scrub-on-free", "broken", "is set"),
        ("sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs", "4", "vgpu-host", "broken", "4 virtual functions"),
        ("usr/lib64/libnvidia-ml.so.590.10", "", "driver", "broken", "590.10"),
        (TOOLKIT, GRANTS.format("true"), "container-toolkit", "broken", "is not false"),
        ("etc/cdi/nvidia.yaml", "{", "cdi", "warning", "it is not a CDI specification"),
        ("sys/fs/cgroup/cgroup.controllers", None, "cgroups", "broken", "is empty"),
        ("run/nvidia-persistenced/socket", None, "persistence", "warning", "does not run"),
        ("dev/kmsg", None, "kernel-log", "warning", "no such file or directory"),
    ],
)
def test_each_fault_of_the_driver_is_found_in_its_file(driven, file, text, name, level, words):
    if text is None:
        (driven.host / file).unlink()
    else:
        write(driven.host / file, text)
    assert words in driven.only(name, level)


def test_the_multi_process_service_is_found_while_it_runs(driven):
    program = driven.root / "nvidia-cuda-mps-control"
    shutil.copy("/bin/cat", program)
    with subprocess.Popen([program], stdin=subprocess.PIPE) as running:
        (driven.root / "proc" / str(running.pid)).symlink_to(f"/proc/{running.pid}")
        assert f"process {running.pid}" in driven.only("mps", "broken")
        running.communicate()


def test_invalid_files_are_reported_and_do_not_stop_the_checks(driven):
    for file in [path for path in driven.host.rglob("*") if path.is_file()]:
        file.write_bytes(b"\xff\x00\x1b[2J{[:=" * 9)
    (driven.host / "etc/cdi").joinpath(os.fsdecode(b"\xff.json")).write_text("{}")
    (driven.host / "var").mkdir()
    (driven.host / "var/run").symlink_to("run")
    code, found = driven.examine()
    assert (code, set(found)) == (1, SEEN_WITHOUT_SERVICE)
    assert (levels(found)["scrub-on-free"], levels(found)["container-toolkit"]) == ("broken", "broken")
    assert all(letter.isprintable() for those in found.values() for it in those for letter in it["text"])


def test_a_run_directory_of_another_user_is_broken(node, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 3_999_999)
    _, found = node.examine()
    assert "belongs to another user" in only(found, "run-dir", "broken")
    assert "become the user" in found["run-dir"][0]["remedy"]


def test_a_stale_resource_socket_is_a_warning(node):
    node.listen("autoclave/nvidia.com_mig.sock").close()
    (node.kubelet_dir / "autoclave/lock").touch()  # a plugin has it beside its sockets
    _, found = node.examine()
    assert [(it["level"], it["text"].partition(":")[0].rpartition("_")[2]) for it in found["plugin"]] == [
        ("ok", "gpu.sock"), ("warning", "mig.sock")
    ]  # fmt: skip


@pytest.mark.parametrize("error", [errno.EACCES, errno.EPERM, errno.EPROTOTYPE, errno.ENOTCONN, errno.EAGAIN])
def test_an_unreadable_socket_counts_as_another_plugin(node, monkeypatch, error):
    """SELinux, a mode, a socket of another kind, a full backlog: none of them proves that no plugin is there."""
    node.listen("nvidia-gpu.sock")
    connect_error = unix_sockets.connect_error
    refused = OSError(error, os.strerror(error))
    monkeypatch.setattr(
        unix_sockets, "connect_error", lambda path: refused if path.name.startswith("nv") else connect_error(path)
    )
    assert "cannot tell whether" in node.only("rival-plugin", "broken")


def test_a_read_only_kubelet_directory_is_a_warning_without_plugin(node, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    node.only("plugin-dir", "ok")
    node.plugin.close()
    assert str(node.kubelet_dir) in node.only("plugin-dir", "warning")


def test_a_service_that_is_slow_to_answer_is_asked_again(node, start):
    service = start()
    os.kill(service.process.pid, signal.SIGSTOP)
    awake = threading.Timer(1.0, os.kill, (service.process.pid, signal.SIGCONT))
    awake.start()
    node.only("service", "ok")
    awake.join()


def test_a_service_that_listens_and_never_answers_is_broken(node, monkeypatch):
    monkeypatch.setattr(service_facts, "PATIENCE", 0.2)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(node.run_dir / "admin.sock"))
        deaf.listen()
        assert f"{node.run_dir}/admin.sock: " in node.only("service", "broken")


def test_faults_of_an_answering_service_are_found(autoclave, node, start):
    file = node.root / "site.yaml"
    file.write_text("name: site\ndefaults:\n  clear: {passes: random}\n  paths: {first_look: fast}\n")
    service = start("--policy", file)
    uuid = service.settled(0, "clean").device
    autoclave("quarantine", "0", "--reason", "smells", AUTOCLAVE_RUN_DIR=str(service.run_dir))
    code, found = node.examine()
    assert code == 0  # warnings only
    assert f"GPU 0 ({uuid}) " in only(found, "device", "warning")
    assert [it["level"] for it in found["concession"]] == ["warning", "warning"]
    assert "clear.passes random: a tenant" in found["concession"][1]["text"]
    file.write_text("name: [")
    service.hear("policy not loaded")
    (service.run_dir / "scrubber.sock").unlink()
    (service.root / "state").rename(service.root / "elsewhere")
    code, found = node.examine()
    assert (code, "site.yaml:1" in only(found, "policy", "broken")) == (1, True)
    assert "scrubber.sock: no such file or directory" in only(found, "scrubber-socket", "broken")
    assert "no such file" in only(found, "disk", "warning")
    only(found, "service", "ok")


def test_the_report_is_a_document_of_a_stable_form(node):
    report = json.loads(node.doctor("-o", "json").stdout)
    assert list(report) == ["apiVersion", "kind", "level", "findings"]
    assert (report["apiVersion"], report["kind"], report["level"]) == ("autoclave/v1", "DoctorReport", "broken")
    assert {tuple(it) for it in report["findings"]} == {("name", "level", "text", "remedy")}
    assert report == YAML(typ="safe", pure=True).load(node.doctor("-o", "yaml").stdout)
    rows = list(csv.DictReader(io.StringIO(node.doctor("-o", "csv").stdout)))
    assert [(it["level"], it["name"]) for it in rows] == [(it["level"], it["name"]) for it in report["findings"]]
    assert [it["remedy"] for it in rows] == [it["remedy"] for it in report["findings"]]


def test_the_table_lists_findings_and_stderr_counts_them(node):
    node.kubelet.close()
    before = sorted(node.root.rglob("*"))
    run = node.doctor()
    lines = run.stdout.splitlines()
    assert lines[0].split() == ["LEVEL", "CHECK", "FINDING"]
    assert [line.split()[:2] for line in lines[1:]] == [
        ["broken", "service"], ["ok", "run-dir"], ["ok", "file-watches"], ["ok", "clock"], ["ok", "plugin-dir"],
        ["ok", "rival-plugin"], ["ok", "kubelet-dir"], ["broken", "kubelet"], ["ok", "checkpoint"],
        ["ok", "double-allocation"], ["ok", "plugin"],
    ]  # fmt: skip
    assert (run.exit_code, " 2 of 11 " in run.stderr) == (1, True)
    assert sorted(node.root.rglob("*")) == before  # the doctor leaves no file behind


def test_each_line_of_a_finding_is_a_row():
    found = [Finding(Level.BROKEN, "a:1: x\na:2: y", "correct it", "policy")]
    lines = text_tables.plain(doctor.HEADERS, doctor.rows(found)).splitlines()
    assert [line[lines[0].index("FINDING") :] for line in lines[1:]] == ["a:1: x", "a:2: y; correct it"]


BOTH = ("--only", "kubelet-dir", "--only", "rival-plugin")


@pytest.mark.parametrize(
    ("flags", "code", "names"),
    [
        (BOTH, 1, {"kubelet-dir", "rival-plugin"}),
        ((*BOTH, "--skip", "rival-plugin"), 0, {"kubelet-dir"}),
        (("--only", "kubelet-dir"), 0, {"kubelet-dir"}),
    ],
)
def test_only_selected_findings_are_reported_and_judged(node, flags, code, names):
    node.listen("nvidia-gpu.sock")
    assert (node.examine(*flags)[0], set(node.examine(*flags)[1])) == (code, names)


def test_a_node_without_kubernetes_needs_no_kubelet(node, start):
    service = start()
    service.settled(0, "clean")
    node.kubelet_dir = node.root / "none"
    code, found = node.examine("--without-kubernetes")
    assert (code, levels(found)) == (0, dict.fromkeys(EVERYTHING - KUBELET, "ok") | {"fence": "warning"})
    service.kill()
    assert node.doctor("--without-kubernetes").exit_code == 1


def test_waiting_names_the_other_plugin_and_ends_with_it(node):
    rival = node.listen("nvidia-gpu.sock")
    node.listen("port.sock")  # of another vendor
    with waiting(node) as process:
        assert "serves at" in process.stdout.readline() + process.stdout.readline()
        rival.close()
        assert "no other plugin" in process.communicate(timeout=WITHIN)[0]
        assert process.returncode == 0


def test_waiting_ends_at_a_signal(node):
    node.listen("nvidia-gpu.sock")
    with waiting(node) as process:
        process.stdout.readline()
        process.terminate()
        process.communicate(timeout=WITHIN)
        assert process.returncode == INTERRUPTED


def test_a_wait_that_is_over_is_a_no(node):
    node.listen("nvidia-gpu.sock")
    with waiting(node, "1ms") as process:
        assert " 1 of 1 " in process.communicate(timeout=WITHIN)[1]
        assert process.returncode == NOT_CLEAN


@contextmanager
def waiting(node, patience="60s"):
    words = (
        "--only=rival-plugin",
        f"--wait={patience}",
        f"--kubelet-dir={node.kubelet_dir}",
        f"--run-dir={node.run_dir}",
        f"--host-root={node.host}",
    )
    command = [sys.executable, "-m", "autoclave", "doctor", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.fixture
async def api(short_tmp, monkeypatch):
    """An API server, and the environment of a DRA driver."""
    api = ApiServer(short_tmp, "node-1")
    await api.open()
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
    monkeypatch.setenv("NODE_NAME", "node-1")
    yield api
    await api.leave()


async def test_a_disabled_feature_gate_is_a_named_warning(api, short_tmp):
    def gates() -> dict[str, str]:
        asked = replace(at(short_tmp), driver_name="gpu.autoclave.internal")
        return {it.text: it.level.value for it in all_checks.judge(asked, {"feature-gates"})}

    assert list((await asyncio.to_thread(gates)).values()) == ["ok"]
    api.keeps_taints = False
    found = await asyncio.to_thread(gates)
    assert list(found.values()) == ["warning"]
    assert resource_slices.TAINTS_GATE in next(iter(found))
    assert api.objects("resourceslices") == []  # a dry run
    await api.close()
    [text] = await asyncio.to_thread(gates)
    assert "cannot ask the API server" in text


@pytest.mark.parametrize(
    ("skipped", "level"),
    [(None, "ok"), (["NodeUnprepareResources"], "ok"), (["NodePrepareResources"], "broken"), (["*"], "broken")],
)
async def test_a_slice_whose_claims_are_not_prepared_is_found(api, short_tmp, skipped, level):
    spec = {"driver": "gpu.nvidia.com", "nodeName": "node-1", "skipNodeOperations": skipped}
    api.create("resourceslices", {"metadata": {"name": "a-slice"}, "spec": spec})

    async def judged() -> Finding:
        asked = replace(at(short_tmp), driver_name="gpu.nvidia.com")
        [found] = await asyncio.to_thread(all_checks.judge, asked, {"claims"})
        return found

    found = await judged()
    assert (found.level.value, "a-slice" in found.text) == (level, level == "broken")
    await api.close()
    found = await judged()
    assert "cannot ask the API server" in found.text


def test_every_check_stands_in_its_page():
    page = PAGE.read_text()
    assert sorted(name for name in all_checks.NAMES if f"| `{name}` |" not in page) == []
    [flag] = re.findall(r"\| `--without-kubernetes` \| (.*?), for a node", page)
    assert sorted(re.findall(r"`([a-z-]+)`", flag)) == sorted(all_checks.OF_KUBERNETES)
