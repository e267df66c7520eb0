"""``autoclave doctor``: each finding once as it is shown, and once in a state in which it is fine."""

import asyncio
import json
import os
import signal
import socket
import threading
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from autoclave.cli.verbs import doctor
from autoclave.doctor import gathering
from autoclave.doctor.findings import roster
from demo import stage
from demo.standins import checkpoint
from demo.standins.api_server import ApiServer
from plugin.dra import slices
from tests.cli.doctor_run import EVERYTHING, HERE, KUBELET, NVIDIA, SEEN, SERVICE, levels, only

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"


async def test_a_node_is_healthy_until_plugin_and_kubelet_are_killed(examine):
    node = stage.Stage(1, memory="1MiB")
    try:
        await node.start()
        await node.start_node()
        await node.settled(0, lambda device: device.state == "clean")
        code, found = await asyncio.to_thread(examine, node.kubelet_dir, node.root / "run")
        assert levels(found) == dict.fromkeys(EVERYTHING, "ok")
        assert code == 0
        await node.plugin.end(signal.SIGKILL)
        code, found = await asyncio.to_thread(examine, node.kubelet_dir, node.root / "run")
        assert (code, only(found, "plugin", "broken").endswith("gpu.sock: connection refused")) == (1, True)
        assert levels(found)["kubelet"] == "ok"
        await node.kubelet.kill()
        code, found = await asyncio.to_thread(examine, node.kubelet_dir, node.root / "run")
        assert (code, "accepts no connections at" in only(found, "kubelet", "broken")) == (1, True)
    finally:
        await node.clear_away(keep=False)


def test_a_missing_service_is_one_finding_among_the_others(examine, kubelet, short_tmp):
    code, found = examine(kubelet.directory, short_tmp / "nowhere")
    assert code == 1
    assert "cannot reach the scrub service" in only(found, "service", "broken")
    assert found["service"][0]["remedy"] == "start `autoclave scrubber`, or pass its --run-dir"
    assert "no such file or directory" in only(found, "run-dir", "broken")
    assert levels(found) == {**dict.fromkeys(KUBELET, "ok"), "service": "broken", "run-dir": "broken", "clock": "ok"}


def test_a_service_that_is_slow_to_answer_is_asked_again(examine, kubelet, started):
    service = started()
    os.kill(service.process.pid, signal.SIGSTOP)
    awake = threading.Timer(1.0, os.kill, (service.process.pid, signal.SIGCONT))
    awake.start()
    _, found = examine(kubelet.directory, service.run_dir)
    awake.join()
    only(found, "service", "ok")


def test_a_service_that_listens_and_never_answers_is_broken(examine, kubelet, short_tmp, monkeypatch):
    monkeypatch.setattr(gathering, "PATIENCE", 0.2)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(short_tmp / "admin.sock"))
        deaf.listen()
        _, found = examine(kubelet.directory, short_tmp)
    assert "cannot reach the scrub service" in only(found, "service", "broken")


def test_a_link_is_no_run_directory(examine, kubelet, short_tmp):
    (short_tmp / "real").mkdir(mode=0o700)
    (short_tmp / "run").symlink_to(short_tmp / "real")
    _, found = examine(kubelet.directory, short_tmp / "run")
    assert "it is not a directory" in only(found, "run-dir", "broken")
    _, found = examine(kubelet.directory, short_tmp / "real")
    only(found, "run-dir", "ok")


def test_a_run_directory_open_to_other_users_is_broken(examine, kubelet, short_tmp):
    (short_tmp / "run").mkdir()
    (short_tmp / "run").chmod(0o710)
    _, found = examine(kubelet.directory, short_tmp / "run")
    assert "other users may write to" in only(found, "run-dir", "broken")


def test_a_run_directory_of_another_user_is_broken(examine, kubelet, monkeypatch, short_tmp):
    (short_tmp / "run").mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 3_999_999)
    _, found = examine(kubelet.directory, short_tmp / "run")
    assert "belongs to another user" in only(found, "run-dir", "broken")
    assert "become the user" in found["run-dir"][0]["remedy"]


def test_faults_of_an_answering_service_are_found(autoclave, examine, kubelet, started, short_tmp):
    file = short_tmp / "site.yaml"
    file.write_text("name: site\ndefaults:\n  clear: {on_chip: slow-path}\n  restart_on_sick: allow\n")
    service = started("--policy", file)
    uuid = service.settled(0, "clean").device
    autoclave("quarantine", "0", "--reason", "smells", AUTOCLAVE_RUN_DIR=str(service.run_dir))
    code, found = examine(kubelet.directory, service.run_dir)
    assert code == 0  # warnings only
    assert only(found, "device", "warning") == f"GPU 0 ({uuid}) is quarantined: operator: smells"
    assert "`autoclave explain 0`" in found["device"][0]["remedy"]
    assert [it["level"] for it in found["concession"]] == ["warning", "warning"]
    assert "clear.on_chip slow-path: registers" in found["concession"][0]["text"]
    file.write_text("name: [")
    service.hear("policy not loaded")
    (service.run_dir / "scrubber.sock").unlink()
    (service.root / "state").rename(service.root / "elsewhere")
    code, found = examine(kubelet.directory, service.run_dir)
    assert (code, "site.yaml:1" in only(found, "policy", "broken")) == (1, True)
    assert "scrubber.sock: no such file or directory" in only(found, "scrubber-socket", "broken")
    assert "no such file" in only(found, "disk", "warning")
    only(found, "service", "ok")


def test_a_missing_kubelet_directory_is_the_only_kubelet_finding(examine, short_tmp):
    code, found = examine(short_tmp / "none", short_tmp)
    assert (code, set(found)) == (1, {"service", "kubelet-dir", *HERE})
    assert "no such file or directory" in only(found, "kubelet-dir", "broken")


def test_a_stale_or_missing_kubelet_socket_is_broken(examine, kubelet, short_tmp):
    kubelet.kubelet.close()
    _, found = examine(kubelet.directory, short_tmp)
    assert "connection refused" in only(found, "kubelet", "broken")
    (kubelet.directory / "kubelet.sock").unlink()
    _, found = examine(kubelet.directory, short_tmp)
    assert "no such file or directory" in only(found, "kubelet", "broken")
    kubelet.listen("kubelet.sock")
    _, found = examine(kubelet.directory, short_tmp)
    only(found, "kubelet", "ok")


def test_a_checkpoint_that_is_not_there_yet_is_a_warning(examine, kubelet, short_tmp):
    (kubelet.directory / checkpoint.NAME).unlink()
    _, found = examine(kubelet.directory, short_tmp)
    only(found, "checkpoint", "warning")
    assert "double-allocation" not in found


@pytest.mark.parametrize("text", ["", "{}", '{"Data": {"PodDeviceEntries": [{"PodUID": ""}]}}'])
def test_an_invalid_checkpoint_is_broken(examine, kubelet, short_tmp, text):
    (kubelet.directory / checkpoint.NAME).write_text(text)
    _, found = examine(kubelet.directory, short_tmp)
    assert "it does not have the format of a checkpoint" in only(found, "checkpoint", "broken")
    assert "double-allocation" not in found


def test_a_checkpoint_that_cannot_be_read_is_broken(examine, kubelet, short_tmp):
    (kubelet.directory / checkpoint.NAME).unlink()
    (kubelet.directory / checkpoint.NAME).mkdir()
    _, found = examine(kubelet.directory, short_tmp)
    assert "Is a directory" in only(found, "checkpoint", "broken")


def test_only_different_pods_on_one_gpu_are_broken(examine, kubelet, short_tmp):
    kubelet.hold(("pod-1", "nvidia.com/gpu", "GPU-1"), ("pod-1", "nvidia.com/gpu", "GPU-1"))
    _, found = examine(kubelet.directory, short_tmp)
    only(found, "double-allocation", "ok")
    kubelet.hold(("pod-2", "nvidia.com/gpu", "GPU-1"), ("pod-1", "nvidia.com/gpu", "GPU-1"))
    code, found = examine(kubelet.directory, short_tmp)
    assert code == 1
    assert only(found, "double-allocation", "broken").endswith("gave GPU-1 to several pods at once: pod-1, pod-2")


def test_a_plugin_that_is_not_there_is_broken(examine, kubelet, short_tmp):
    (kubelet.directory / "autoclave/nvidia.com_gpu.sock").unlink()
    _, found = examine(kubelet.directory, short_tmp)
    assert "no device plugin serves" in only(found, "plugin", "broken")
    (kubelet.directory / "autoclave").rmdir()
    _, found = examine(kubelet.directory, short_tmp)
    assert "no device plugin serves" in only(found, "plugin", "broken")
    (kubelet.directory / "autoclave").touch()
    _, found = examine(kubelet.directory, short_tmp)
    assert "not a directory" in only(found, "plugin", "broken")


def test_a_stale_resource_socket_is_a_warning(examine, kubelet, short_tmp):
    kubelet.listen("autoclave/nvidia.com_mig.sock").close()
    (kubelet.directory / "autoclave/lock").touch()  # a plugin has it beside its sockets
    _, found = examine(kubelet.directory, short_tmp)
    assert [(it["level"], it["text"].partition(":")[0].rpartition("_")[2]) for it in found["plugin"]] == [
        ("ok", "gpu.sock"), ("warning", "mig.sock")
    ]  # fmt: skip
    kubelet.plugin.close()
    _, found = examine(kubelet.directory, short_tmp)
    assert levels(found)["plugin"] == "broken"


def test_the_report_is_a_document_of_a_stable_form(autoclave, kubelet, short_tmp):
    flags = ("--kubelet-dir", kubelet.directory, "--run-dir", short_tmp)
    report = json.loads(autoclave("doctor", *flags, "-o", "json").stdout)
    assert list(report) == ["apiVersion", "kind", "level", "findings"]
    assert (report["apiVersion"], report["kind"], report["level"]) == ("autoclave/v1", "DoctorReport", "broken")
    assert {tuple(it) for it in report["findings"]} == {("name", "level", "text", "remedy")}
    assert report == YAML(typ="safe", pure=True).load(autoclave("doctor", *flags, "-o", "yaml").stdout)


def test_the_table_lists_findings_and_stderr_counts_them(autoclave, kubelet, short_tmp):
    kubelet.kubelet.close()
    places = ("--kubelet-dir", kubelet.directory, "--run-dir", short_tmp / "none", "--host-root", short_tmp / "host")
    run = autoclave("doctor", *places)
    lines = run.stdout.splitlines()
    assert lines[0].split() == ["LEVEL", "CHECK", "FINDING"]
    assert [line.split()[:2] for line in lines[1:]] == [
        ["broken", "service"], ["broken", "run-dir"], ["ok", "clock"], ["ok", "plugin-dir"], ["ok", "rival-plugin"],
        ["ok", "kubelet-dir"], ["broken", "kubelet"], ["ok", "checkpoint"], ["ok", "double-allocation"],
        ["ok", "plugin"],
    ]  # fmt: skip
    assert lines[7].endswith("kubelet.sock: connection refused; start the kubelet, or read its log if it runs")
    assert run.stderr == "autoclave: 3 of 10 findings are broken; each names its remedy\n"
    assert run.exit_code == 1


def test_a_file_instead_of_a_directory_is_wrong_usage(autoclave, short_tmp):
    (short_tmp / "file").touch()
    assert autoclave("doctor", "--kubelet-dir", short_tmp / "file").exit_code == 2


def test_only_the_requested_findings_are_shown_and_counted(examine, kubelet, short_tmp):
    nowhere = short_tmp / "nowhere"
    code, found = examine(kubelet.directory, nowhere, only=["kubelet-dir", "rival-plugin"])
    assert (code, levels(found)) == (0, {"kubelet-dir": "ok", "rival-plugin": "ok"})
    kubelet.listen("nvidia-gpu.sock")
    code, found = examine(kubelet.directory, nowhere, only=["kubelet-dir", "rival-plugin"])
    assert (code, levels(found)) == (1, {"kubelet-dir": "ok", "rival-plugin": "broken"})


def test_a_skipped_finding_is_neither_reported_nor_judged(autoclave, kubelet, short_tmp):
    kubelet.listen("nvidia-gpu.sock")
    some = ("--only", "kubelet-dir", "--only", "rival-plugin", "--kubelet-dir", kubelet.directory, "-o", "json")
    run = autoclave("doctor", *some, "--skip", "rival-plugin", AUTOCLAVE_RUN_DIR=str(short_tmp))
    assert [it["name"] for it in json.loads(run.stdout)["findings"]] == ["kubelet-dir"]
    assert run.exit_code == 0


def test_skipping_every_finding_is_broken(autoclave, short_tmp):
    run = autoclave("doctor", "--only", "clock", "--skip", "clock", AUTOCLAVE_RUN_DIR=str(short_tmp))
    assert run.exit_code == 1
    assert run.stderr == "autoclave: nothing was checked: no finding is left, which counts as broken\n"


def test_a_node_without_kubernetes_needs_no_kubelet(autoclave, started, short_tmp):
    service = started()
    service.settled(0, "clean")
    here = ("doctor", "--without-kubernetes", "--kubelet-dir", short_tmp / "none", "--host-root", short_tmp)
    where = {"AUTOCLAVE_RUN_DIR": str(service.run_dir)}
    run = autoclave(*here, "-o", "json", **where)
    found = json.loads(run.stdout)["findings"]
    assert {it["name"]: it["level"] for it in found} == dict.fromkeys(SERVICE | HERE, "ok")
    assert run.exit_code == 0
    service.kill()
    assert autoclave(*here, **where).exit_code == 1


@pytest.mark.parametrize("flag", ["--only", "--skip"])
def test_a_finding_that_there_is_not_is_wrong_usage(autoclave, flag):
    assert autoclave("doctor", flag, "rival-plugn").exit_code == 2


def test_the_doctor_leaves_no_file_behind(examine, kubelet, short_tmp):
    before = sorted(short_tmp.rglob("*"))
    examine(kubelet.directory, short_tmp / "run")
    assert sorted(short_tmp.rglob("*")) == before


def test_a_path_too_long_for_a_socket_is_a_finding(examine, short_tmp):
    deep = short_tmp / ("x" * 120)
    deep.mkdir()
    code, found = examine(deep, deep)
    assert code == 1
    assert {levels(found)[name] for name in ("service", "kubelet", "plugin")} == {"broken"}
    assert "af_unix path too long" in only(found, "kubelet", "broken")


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
        facts = gathering.gather(short_tmp, short_tmp, short_tmp, driver="gpu.autoclave.dev", ask=doctor._status)
        return {it.text: it.level.value for it in roster.judge(facts) if it.name == "feature-gates"}

    assert list((await asyncio.to_thread(gates)).values()) == ["ok"]
    api.keeps_taints = False
    found = await asyncio.to_thread(gates)
    assert list(found.values()) == ["warning"]
    assert slices.TAINTS_GATE in next(iter(found))
    assert api.objects("resourceslices") == []  # a dry run
    await api.close()
    [text] = await asyncio.to_thread(gates)
    assert "cannot ask the API server" in text


def test_every_check_stands_in_its_page():
    page = PAGE.read_text()
    assert sorted(name for name in EVERYTHING | NVIDIA | SEEN if f"| `{name}` |" not in page) == []
    assert sorted(roster.NAMES) == sorted(EVERYTHING | NVIDIA | SEEN)
