"""Verbs against the real service on simulated GPUs."""

import csv
import io
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from autoclave.cli import offline, service_call
from autoclave.cli.output import human
from ground.documents import strict_json
from ground.errors import Reason, Refused
from scrub_api import admin_client, client, views
from scrubber import __version__
from scrubber.devices.simulated import containers, drills, layout
from scrubber.node import proc
from tests.live import Service
from tests.patience import WITHIN


def output_of(run, code=0):
    assert run.exit_code == code, run.output
    return run.stdout


def items(run, code=0):
    return json.loads(output_of(run, code))["items"]


def test_status_shows_every_gpu_in_order(autoclave, gpu):
    lines = output_of(autoclave("status")).splitlines()
    assert lines[0].split() == ["GPU", "UUID", "STATE", "FOR", "HEALTHY", "NOTE"]
    assert [line.split()[0] for line in lines[1:]] == [str(index) for index in range(len(lines) - 1)]
    assert re.fullmatch(rf"{gpu} +GPU-[0-9a-f]{{8}}\S* +clean +\d+[sm] +yes +-", lines[1 + gpu])


def test_every_table_is_there_as_csv(autoclave, gpu):
    """With the columns of the widest table, under names of small letters."""

    def rows(*words: object) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(output_of(autoclave(*words, "-o", "csv")))))

    [status] = rows("status", gpu)
    assert (status["gpu"], status["state"], status["coverage"]) == (str(gpu), "clean", "100.00%")
    assert output_of(autoclave("status", gpu, "-o", "csv", "--no-headers")).count("\n") == 1
    assert rows("history", gpu)[0].keys() == {"row", "time", "gpu", "what"}
    [result] = rows("scrub", gpu)
    assert (result["gpu"], result["clean"]) == (str(gpu), "yes")


def test_documents_change_neither_exit_codes_nor_errors(autoclave, gpu, two_gpus):
    """A verb that has an answer prints it as a document, also if it was refused; any other leaves stdout empty."""
    held, sick = two_gpus
    output_of(autoclave("acquire", held, "--owner", "job"))
    output_of(autoclave("quarantine", sick, "--reason", "test"))
    answered = {("scrub", held): 4, ("scrub", sick): 1, ("reinstate", gpu): 4, ("wait", held, "--timeout", "0s"): 5}
    unanswered = {("status", "none"): 2, ("acquire", held, "--owner", "another"): 1, ("receipt", "show", "none"): 2}
    for words, code in (answered | unanswered).items():
        for_people, document = autoclave(*words), autoclave(*words, "-o", "json")
        assert (for_people.exit_code, document.exit_code) == (code, code), words
        assert document.stderr == for_people.stderr != ""
        assert (document.stdout != "") == (words in answered)
        assert not document.stdout or json.loads(document.stdout)["items"]
    output_of(autoclave("release", held))


def test_scrub_proves_a_gpu_clean_again(autoclave, gpu):
    run = autoclave("scrub", gpu, "--path", "slow", "-o", "json")
    made = json.loads(output_of(run))
    (item,) = made["items"]
    assert (made["kind"], item["clean"], item["index"], item["receipt"]["path"]) == (
        "ScrubResultList",
        True,
        gpu,
        "slow",
    )
    assert item["receipt"]["covered_bytes"] == 2**20
    assert (item["receipt"]["units_reached"], item["receipt"]["patterns"]) == (8, ["random", "zero"])
    assert item["receipt"]["tests"] == ["random", "arithmetic"]
    assert run.stderr == ""


def test_scrub_finds_what_an_unauthorised_user_left(autoclave, service, gpu):
    output_of(autoclave("simulate", "occupy", gpu, "--secret", "hush"))
    service.settled(gpu, "dirty")
    refused = autoclave("scrub", gpu)
    assert refused.exit_code == 1
    assert re.search(rf"^{gpu} +GPU-\S+ +no ", refused.stdout, re.MULTILINE)
    assert f" GPU {gpu}: " in refused.stderr
    output_of(autoclave("simulate", "release", gpu))
    service.settled(gpu, "clean")
    rows = items(autoclave("history", gpu, "--steps", "-o", "json"))
    texts = [entry["text"] for entry in rows]
    assert any("12 bytes" in text for text in texts)


def test_the_slow_path_quarantines_a_unit_that_computes_wrongly(autoclave, gpu):
    output_of(autoclave("simulate", "bad-compute", gpu, "--unit", "5"))
    run = autoclave("scrub", gpu, "--path", "slow")
    assert run.exit_code == 1
    [device] = items(autoclave("status", gpu, "-o", "json"))
    assert (device["quarantine"]["reason"], device["quarantine"]["sticky"]) == ("compute-fault", True)
    output_of(autoclave("simulate", "heal", gpu))
    output_of(autoclave("reinstate", gpu))


def test_heat_is_shown_and_broken_links_quarantine_a_gpu(autoclave, service, gpu):
    def status() -> dict[str, Any]:
        device: dict[str, Any]
        (device,) = items(autoclave("status", gpu, "-o", "json"))
        return device

    output_of(autoclave("scrub", gpu))
    output_of(autoclave("simulate", "heat", gpu))
    while (why := status()["why"]) == "clean":
        assert status()["healthy"]
    assert (status()["state"], status()["healthy"]) == ("clean", True)
    assert why.startswith("heat: it has 95 degrees")
    assert why in output_of(autoclave("status", gpu))
    assert "advice  heat: " in output_of(autoclave("explain", gpu))
    output_of(autoclave("simulate", "sign", gpu, "links", "--detail", "two are down"))
    service.settled(gpu, "quarantined")
    assert (status()["quarantine"]["reason"], status()["quarantine"]["detail"]) == ("links", "two are down")
    assert autoclave("reinstate", gpu).exit_code == 1
    output_of(autoclave("simulate", "heal", gpu))
    output_of(autoclave("reinstate", gpu))


@pytest.mark.parametrize("verb", ["status", "explain", "history"])
@pytest.mark.usefixtures("service")
def test_a_service_of_another_version_is_one_line(autoclave, monkeypatch, verb):
    parse: Any = strict_json.parse
    monkeypatch.setattr(strict_json, "parse", lambda text: parse(text) | {"newer": 1})
    refused = autoclave(verb, 0)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == (
        "autoclave: cannot read the answer of the scrub service: it speaks another version of the API; "
        "update the service, or use the program of its version\n"
    )


def test_a_gpu_is_acquired_and_released_without_a_kubelet(autoclave, service, gpu):
    (grant,) = items(autoclave("acquire", gpu, "-o", "json"))
    assert grant["receipt"] == service.settled(gpu, "granted").receipt.id
    pid = drills.zombie(service.simulated_dir, grant["device"])  # a job's program: in no container
    service.settled(gpu, "in_use")
    refused = autoclave("acquire", gpu)
    assert refused.exit_code == 1
    assert f"{grant['device']}: it is in use; " in refused.stderr
    assert service.settled(gpu, "in_use").job is None
    drills.kill(pid)
    for released in (True, False):
        (item,) = items(autoclave("release", gpu, "-o", "json"))
        assert (item["device"], item["index"], item["released"]) == (grant["device"], gpu, released)
    assert service.settled(gpu, "clean").receipt.id != grant["receipt"]


def test_the_owner_of_a_job_is_in_status_and_receipt(autoclave, service, gpu):
    output_of(autoclave("acquire", gpu, "--owner", "job 4711"))
    (shown,) = items(autoclave("status", gpu, "-o", "json"))
    assert (shown["owner"], shown["receipt"]["last_owner"]) == ("job 4711", "")
    refused = autoclave("release", gpu, AUTOCLAVE_OWNER="job 4712")
    assert (refused.exit_code, shown["device"] in refused.stderr) == (4, True)
    assert service.settled(gpu, "granted").owner == "job 4711"
    output_of(autoclave("release", gpu, "--owner", "job 4711"))
    assert service.settled(gpu, "clean").receipt.last_owner == "job 4711"


TRAIN = views.HolderView(7, "ann", "train", "pod-a")


@pytest.mark.parametrize(
    ("seen", "by"),
    [
        ({"holders": (TRAIN,), "first": "end it: `kill 7`"}, ' by "train" (pid 7, user ann, pod-a); end it: `kill 7`'),
        ({"first": "it starts; wait 10 s"}, "; it starts; wait 10 s"),
        ({"pod": "ns/train"}, " by ns/train; `autoclave explain 0` says more"),
        ({}, "; `autoclave explain 0` says more"),
    ],
    ids=["a process", "no process is known", "a pod", "nothing is known"],
)
def test_a_refused_release_says_who_is_in_the_way(autoclave, gpu, monkeypatch, seen, by):
    """The service does not say it, because tenants may read its refusal. No advice is the command that was refused."""
    explain = admin_client.AdminClient.explain

    async def release(_, devices, **_more) -> tuple[str, ...]:
        raise Refused(Reason.IN_USE, "cannot: x", device=devices[0])

    async def explained(self, asked) -> views.Explanation:
        explanation = await explain(self, asked)
        device = replace(explanation.device, **{name: it for name, it in seen.items() if name != "first"})
        return replace(explanation, device=device, before_release=seen.get("first", ""))

    monkeypatch.setattr(client.ScrubberClient, "release", release)
    monkeypatch.setattr(admin_client.AdminClient, "explain", explained)
    run = autoclave("release", gpu)
    assert run.exit_code == 1
    assert run.stderr.rstrip().partition("cannot: x")[2] == by.replace("explain 0", f"explain {gpu}")
    assert "autoclave release" not in run.stderr


def test_a_gpu_of_a_pod_is_released_by_force_only(autoclave, service, gpu, monkeypatch):
    """Without an owner, a slip of the finger would take it from the pod that it was just granted to."""
    status = admin_client.AdminClient.status

    async def with_pod(self, *asked, **which) -> views.Status:
        found = await status(self, *asked, **which)
        return replace(found, devices=tuple(replace(device, pod="ns/train/main") for device in found.devices))

    output_of(autoclave("acquire", gpu))
    with monkeypatch.context() as patched:
        patched.setattr(admin_client.AdminClient, "status", with_pod)
        refused = autoclave("release", gpu)
        assert (refused.exit_code, "pod ns/train/main; " in refused.stderr) == (4, True)
        assert service.settled(gpu, "granted").receipt is not None
        assert "is given back" in output_of(autoclave("release", gpu, "--force"))


CLOSES = "import sys; file = open(sys.argv[1], 'r+b'); input(); file.close(); print(flush=True); input()"


def test_a_release_names_a_container_that_has_closed_the_gpu(autoclave, service, gpu):
    container = f"pod-{os.getpid()}"
    (grant,) = items(autoclave("acquire", gpu, "-o", "json"))
    memory = layout.find(service.simulated_dir, grant["device"]).memory
    command, pipe = [sys.executable, "-c", CLOSES, str(memory)], subprocess.PIPE
    marked = os.environ | {containers.MARK: container}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=marked) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        service.settled(gpu, "in_use")
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        refused = autoclave("release", gpu)
        advice = output_of(autoclave("explain", gpu))
        process.communicate("\n")
    who = rf'"\S+" \(pid {process.pid}, user {proc.user(os.getpid())}, {container}\)'
    assert refused.exit_code == 1
    assert re.search(rf" by {who}; end .*: `kill {process.pid}`; if .*`\n$", refused.stderr)
    assert "if its owner has ended: `autoclave release" in advice
    assert "kill" not in advice, "the owner is alive; the refused release names what is left behind"
    output_of(autoclave("release", gpu))


def test_an_owner_releases_all_its_gpus_and_no_others(autoclave, service, gpu, two_gpus):
    ours, theirs = two_gpus, gpu
    output_of(autoclave("acquire", *ours, "--owner", "job 51"))
    granted = output_of(autoclave("acquire", theirs, "--owner", "job 52"))
    assert output_of(autoclave("acquire", theirs, "--owner", "job 52")) == granted
    released = items(autoclave("release", "--owner", "job 51", "-o", "json"))
    assert [(it["index"], it["released"]) for it in released] == [(it, True) for it in ours]
    assert service.settled(theirs, "granted").owner == "job 52"
    output_of(autoclave("release", "--owner", "job 52"))


def test_an_owner_that_is_no_short_line_is_wrong_usage(autoclave, service, gpu):
    for verb in ("acquire", "release"):
        for owner in ("two\nlines", "\x1b[2J", "x" * 129):
            refused = autoclave(verb, gpu, "--owner", owner)
            assert (refused.exit_code, "the owner " in refused.stderr) == (2, True)
    assert service.settled(gpu, "clean").receipt


def test_waiting_ends_when_the_gpu_is_clean_again(autoclave, service, gpu):
    output_of(autoclave("simulate", "stall-clears", gpu))
    assert " running " in output_of(autoclave("scrub", gpu, "--no-wait"))
    with service.popen("wait", gpu, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as wait:
        late = autoclave("wait", gpu, "--timeout", "50ms")
        assert (late.exit_code, late.stdout) == (5, "")
        assert f"autoclave: waited 50ms: GPU {gpu} is not clean; it is scrubbing: " in late.stderr
        assert wait.poll() is None
        output_of(autoclave("simulate", "heal", gpu))
        out, err = wait.communicate(timeout=WITHIN)
    assert (wait.returncode, err) == (0, "")
    assert re.fullmatch(rf"GPU {gpu} \(GPU-\S+\) is clean\n", out)
    assert output_of(autoclave("wait", gpu, "--timeout", "0s")) == out


def test_no_wait_for_a_scrub_that_never_comes(autoclave, short_tmp):
    service = Service(short_tmp, 2, "--policy", "observe")
    observed = partial(autoclave, AUTOCLAVE_RUN_DIR=str(service.run_dir))
    waiting = ("wait", "0", "1", "--timeout", "30s")
    refused = observed(*waiting)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "cannot wait for GPU 0, 1: " in refused.stderr
    assert observed(*waiting, "--for", "healthy").exit_code == 0
    output_of(observed("scrub", "0"))
    assert "cannot wait for GPU 1: " in observed(*waiting).stderr
    output_of(observed("simulate", "stall-clears", "1"))
    output_of(observed("scrub", "1", "--no-wait"))
    assert observed("wait", "1", "--timeout", "0s").exit_code == 5
    service.stop()


def test_a_wait_is_a_document_of_what_was_reached(autoclave, gpu):
    output_of(autoclave("acquire", gpu))
    (item,) = items(autoclave("wait", gpu, "--timeout", "0s", "-o", "json"), 5)
    assert (item["index"], item["reached"], item["state"]) == (gpu, False, "granted")
    output_of(autoclave("release", gpu))


def test_waiting_and_watching_outlive_the_service(autoclave, own_service):
    own_service.settled(0, "clean")
    retrying = f"autoclave: {service_call.RETRYING}\n"
    ours, theirs = pty.openpty()
    with ExitStack() as verbs:
        watching = own_service.popen("status", "0", "--watch", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        watch = verbs.enter_context(watching)
        assert watch.stdout.readline().startswith("GPU  UUID")
        assert " clean " in watch.stdout.readline()
        output_of(autoclave("quarantine", "0", "--reason", "one"))
        assert watch.stdout.readline().startswith("GPU  UUID")
        assert "operator: one" in watch.stdout.readline()
        wait = verbs.enter_context(own_service.popen("wait", "0", stdout=subprocess.PIPE, stderr=theirs))
        os.close(theirs)
        screen = verbs.enter_context(os.fdopen(ours))
        line = screen.readline()  # only a person is told
        assert line.startswith("autoclave: waiting up to 5m: GPU 0 is not clean; it is quarantined: operator: one; ")
        own_service.kill()
        assert (screen.readline(), watch.stderr.readline()) == (retrying, retrying)
        own_service.start()
        output_of(autoclave("reinstate", "0"))
        assert " is clean" in wait.communicate(timeout=WITHIN)[0]
        while " clean " not in watch.stdout.readline():
            pass
        watch.send_signal(signal.SIGINT)
        watch.communicate(timeout=WITHIN)
    assert (wait.returncode, watch.returncode) == (0, 130)


def test_a_quarantine_is_in_the_status_with_who_and_why(autoclave, gpu):
    output_of(autoclave("quarantine", gpu, "--reason", "smells [bold]odd"))
    (device,) = items(autoclave("status", gpu, "-o", "json"))
    assert (device["state"], device["healthy"]) == ("quarantined", False)
    assert (device["quarantine"]["by"], device["quarantine"]["detail"]) == (service_call.caller(), "smells [bold]odd")
    output_of(autoclave("reinstate", gpu, "--reason", "aired"))


def test_a_refused_gpu_hides_no_other(autoclave, two_gpus, monkeypatch):
    one, two = two_gpus
    assert autoclave("quarantine", one, "99", "--reason", "test").exit_code == 2
    (bad,) = items(autoclave("status", one, "-o", "json"))
    assert bad["state"] == "clean"  # a GPU that does not exist is found before anything is done
    really = admin_client.AdminClient.quarantine

    async def quarantine(self, gpu, *rest) -> views.DeviceStatus:
        if gpu == bad["device"]:
            raise Refused(Reason.INTERNAL, "cannot quarantine it")
        return await really(self, gpu, *rest)

    with monkeypatch.context() as here:
        here.setattr(admin_client.AdminClient, "quarantine", quarantine)
        run = autoclave("quarantine", one, two, "--reason", "test")
    assert (run.exit_code, run.stderr) == (1, f"autoclave: cannot quarantine GPU {one}: cannot quarantine it\n")
    assert re.fullmatch(rf"GPU {two} \(GPU-\S+\) is quarantined: .*\n", run.stdout)
    both = autoclave("reinstate", one, two, "-o", "json")
    assert [(it["index"], it["state"], it["clean"]) for it in items(both, 4)] == [
        (one, "clean", False), (two, "clean", True),
    ]  # fmt: skip
    assert f"cannot reinstate GPU {one}: " in both.stderr


def test_an_explanation_is_a_document_with_its_events(autoclave, gpu):
    output_of(autoclave("scrub", gpu))
    output_of(autoclave("quarantine", gpu, "--reason", "test"))
    document = json.loads(output_of(autoclave("explain", gpu, "-o", "json")))
    assert (document["kind"], document["device"]["index"]) == ("Explanation", gpu)
    assert document["entries"][-1]["kind"] == "quarantined"


def test_history_shows_the_last_events_since_a_time(autoclave, gpu):
    output_of(autoclave("scrub", gpu))
    rows = [json.loads(line) for line in output_of(autoclave("history", gpu, "-o", "jsonl")).splitlines()]
    assert {row["kind"] for row in rows}.isdisjoint({"scrub-started", "steps-recorded"})
    assert "steps-recorded" in output_of(autoclave("history", gpu, "--steps", "-o", "jsonl"))
    assert [row["seq"] for row in rows] == sorted(row["seq"] for row in rows)
    limited = autoclave("history", gpu, "-n", "2", "-o", "json")
    newest = json.loads(limited.stdout)["items"]
    assert limited.stderr.count("\n") == 1
    assert newest == rows[-2:]
    assert len(output_of(autoclave("history", gpu, "--since", rows[0]["at"])).splitlines()) >= len(rows)
    assert output_of(autoclave("history", gpu, "--until", "2020-01-01")) == "ROW  TIME  GPU  WHAT\n"
    assert items(autoclave("history", gpu, "--until", "2999-01-01", "-o", "json")) == rows
    assert autoclave("history", gpu, "--since", "9d").stderr == ""


def test_the_ledger_answers_for_a_service_that_is_down(autoclave, own_service):
    own_service.settled(0, "clean")
    down = {"AUTOCLAVE_SERVICE_WAIT": "0s"}
    assert autoclave("quarantine", 0, "--reason", "smells", **down).exit_code == 0
    up = json.loads(autoclave("history", "-o", "json", **down).stdout)
    own_service.kill()
    state_dir = own_service.root / "state"
    at = ("--run-dir", own_service.run_dir, "--state-dir", state_dir)
    run = autoclave("history", "-o", "json", *at, **down)
    assert json.loads(run.stdout) == {**up, "from_file": f"{state_dir}/ledger.db"}
    assert f" {state_dir}/ledger.db " in run.stderr
    run = autoclave("explain", 0, "--state-dir", state_dir, **down)
    assert "last    quarantined since" in run.stdout
    assert "        operator: smells\n" in run.stdout
    assert f": {offline.NO_ANSWER.why}\n" in run.stdout
    (state_dir / "ledger.db").write_bytes(b"x" * 4096)
    run = autoclave("explain", 0, "--state-dir", state_dir, **down, KUBERNETES_SERVICE_HOST="10.0.0.1")
    assert run.exit_code == 3
    assert "`kubectl describe`" in run.stderr
    own_service.start()


def test_the_list_of_receipts_shows_each_handover_with_its_proof(autoclave, service, gpu):
    receipt = service.settled(gpu, "clean").receipt
    began = human.iso(time.time())
    for job in ("job 1", "job 2"):
        service.settled(gpu, "clean")
        output_of(autoclave("acquire", gpu, "--owner", job))
        output_of(autoclave("release", gpu))
    wipe = service.settled(gpu, "clean").receipt
    listed = ("receipt", "list", gpu, "--since", began, "--node-name", "node-7")
    first, second = items(autoclave(*listed, "-o", "json"))
    assert (first["node"], first["index"], first["tenant"], first["actor"]) == ("node-7", gpu, "job 1", "acquire")
    assert (first["result"], first["receipt"]) == ("proven", receipt.id)
    assert first["signature"] == (receipt.signed_by or "unsigned")
    assert began <= first["began"] <= first["ended"] <= second["began"]
    assert [json.loads(line) for line in output_of(autoclave(*listed, "-o", "jsonl")).splitlines()] == [first, second]
    rows = list(csv.DictReader(io.StringIO(output_of(autoclave(*listed, "-o", "csv")))))
    in_csv = {name: "" if value is None else str(value) for name, value in first.items()}
    assert (first["simulated"], rows[0]) == (True, in_csv | {"simulated": "true"})
    assert (rows[1]["tenant"], rows[1]["wipe"]) == ("job 2", wipe.id)
    assert (first["wipe"], first["wipe_signature"]) == (second["receipt"], second["signature"])
    assert first["ended"] <= first["wiped"] <= second["began"]
    assert first["wiped_bytes"] == first["allocatable_bytes"] == 2**20
    assert first["residue_bytes"] >= 0
    assert f" {wipe.id} 100.00% " in output_of(autoclave(*listed)).splitlines()[-1].replace("  ", " ")
    assert f" {gpu} job 1 acquire proven {receipt.id} " in " ".join(output_of(autoclave(*listed)).split())
    ledger = service.root / "state" / "ledger.db"
    assert items(autoclave(*listed, "-o", "json", "--file", ledger)) == [first, second]
    of_a_copy = items(autoclave(*listed[:-2], "-o", "json", "--file", ledger))[0]
    assert of_a_copy == first | {"node": socket.gethostname()}, "its receipts name it"
    assert items(autoclave(*listed, "-o", "json", "--until", began)) == []
    assert f"receipt: {receipt.id}" in output_of(autoclave(*listed, "-o", "yaml"))
    assert autoclave(*listed, "--file", service.root / "none").exit_code == 2


def test_the_list_of_receipts_names_the_node_as_they_do(autoclave, short_tmp):
    service = Service(short_tmp, 1, "--node-name", "pool-7")
    try:
        service.settled(0, "clean")
        output_of(autoclave("acquire", 0, "--owner", "job 1", "--run-dir", service.run_dir))
        listed = ("receipt", "list", "-o", "json", "--run-dir", service.run_dir)
        [goes_on] = items(autoclave(*listed))
        output_of(autoclave("release", 0, "--run-dir", service.run_dir))
        service.settled(0, "clean")
        [ended] = items(autoclave(*listed))
        assert [(row["node"], row["ended"] is None) for row in (goes_on, ended)] == [
            ("pool-7", True),
            ("pool-7", False),
        ]
        assert [row["node"] for row in items(autoclave(*listed, "--node-name", "other"))] == ["other"]
    finally:
        service.stop()


def test_history_shows_kinds_and_warnings(autoclave, gpu):
    output_of(autoclave("quarantine", gpu, "--reason", "test"))
    output_of(autoclave("reinstate", gpu))
    kinds = ("--kind", "quarantined", "--kind", "scrub-passed", "-o", "json")
    rows = items(autoclave("history", gpu, *kinds))
    assert [row["kind"] for row in rows][-2:] == ["quarantined", "scrub-passed"]
    assert {row["kind"] for row in rows} == {"quarantined", "scrub-passed"}
    *_, last = output_of(autoclave("history", gpu, "--warnings")).splitlines()
    assert "(operator): test" in last


def test_history_follows_each_event_and_outlives_the_service(autoclave, own_service):
    own_service.settled(0, "clean")
    words = ("history", "0", "--follow", "--kind", "quarantined", "--kind", "discovered")
    with own_service.popen(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as follow:
        assert follow.stdout.readline().split() == ["ROW", "TIME", "GPU", "WHAT"]
        assert "found Simulated GPU" in follow.stdout.readline()
        output_of(autoclave("quarantine", "0", "--reason", "one"))
        assert "(operator): one;" in follow.stdout.readline()
        own_service.kill()
        assert follow.stderr.readline() == f"autoclave: {service_call.RETRYING}\n"
        own_service.start()
        output_of(autoclave("reinstate", "0"))
        output_of(autoclave("quarantine", "0", "--reason", "two"))
        assert "(operator): two;" in follow.stdout.readline()
        output_of(autoclave("reinstate", "0"))
        for _ in range(4):  # so that the next ledger is shorter
            output_of(autoclave("scrub", "0"))
        own_service.kill()
        for part in (own_service.root / "state").glob("ledger*"):
            part.unlink()
        own_service.start()
        assert "found Simulated GPU" in follow.stdout.readline()
        follow.send_signal(signal.SIGINT)
        out, err = follow.communicate(timeout=WITHIN)
    assert follow.returncode == 130
    assert out == ""
    assert err.split("\n", 1)[1].strip() == "autoclave: a new ledger was begun"


def test_policy_which_names_the_rule(autoclave, gpu, tmp_path):
    found = json.loads(output_of(autoclave("policy", "which", gpu, "-o", "json")))
    assert (found["kind"], found["index"], found["rule"]) == ("PolicyMatch", gpu, "default/defaults")
    file = tmp_path / "next.yaml"
    file.write_text(f"name: next\nrules: [{{name: this, match: {{gpu: [{gpu}]}}, policy: {{mode: observe}}}}]\n")
    words = ("policy", "which", gpu, "-o", "json")
    found = json.loads(output_of(autoclave(*words, "--policy", file)))
    assert found["rule"] == "next/this"
    assert json.loads(output_of(autoclave(*words, AUTOCLAVE_POLICY=str(file))))["rule"] == "default/defaults"


@pytest.mark.usefixtures("service")
def test_version_names_command_and_service(autoclave, monkeypatch):
    out = output_of(autoclave("version"))
    assert re.fullmatch(rf"client   {re.escape(__version__)}\nservice  {re.escape(__version__)}, since \S+ \S+\n", out)
    document = json.loads(output_of(autoclave("version", "-o", "json")))
    assert (document["kind"], document["client"], document["service"]["version"]) == (
        "Version", __version__, __version__,
    )  # fmt: skip
    monkeypatch.setattr("autoclave.cli.verbs.about.__version__", "0.0.0")
    assert "the service has another version than this command" in autoclave("version").stderr


def test_the_ledger_is_verified_beside_a_running_service(autoclave, service):
    assert " is intact: " in output_of(autoclave("ledger", "verify", "--state-dir", service.root / "state"))


@pytest.mark.usefixtures("gpu")
def test_gpu_names_are_completed_from_the_service(autoclave, service):
    line = f"autoclave explain --run-dir {service.run_dir} GPU-"
    run = autoclave(_AUTOCLAVE_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD="4")
    uuids = [item["device"] for item in items(autoclave("status", "-o", "json"))]
    assert run.stdout.split() == [f"plain,{uuid}" for uuid in uuids]
    receipt = next(item["receipt"]["id"] for item in items(autoclave("status", "-o", "json")) if item["receipt"])
    line = f"autoclave receipt show --run-dir {service.run_dir} {receipt[:8]}"
    run = autoclave(_AUTOCLAVE_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD="5")
    assert run.stdout.split() == [f"plain,{receipt}"]


@pytest.mark.parametrize("verb", ["quarantine", "reinstate"])
def test_a_reason_has_at_most_500_characters(autoclave, gpu, verb):
    refused = autoclave(verb, gpu, "--reason", "x" * 501)
    assert (refused.exit_code, " 501 " in refused.stderr) == (2, True)


def test_leaving_a_scrub_early_says_that_it_goes_on(autoclave, service, gpu):
    output_of(autoclave("simulate", "stall-clears", gpu))
    with service.popen("scrub", gpu, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as scrub:
        service.settled(gpu, "scrubbing")
        scrub.send_signal(signal.SIGINT)
        out, err = scrub.communicate(timeout=WITHIN)
    assert scrub.returncode == 130
    assert out == ""
    assert err.strip().splitlines() == ["autoclave: no longer waiting; the scrub goes on, `autoclave status` shows it"]
    assert "fast path" in output_of(autoclave("status", gpu))  # also while it waits for a slot
    late = autoclave("scrub", gpu, "--timeout", "50ms", "-o", "json")
    (item,) = json.loads(late.stdout)["items"]
    assert (late.exit_code, item["clean"], item["running"], item["reason"]) == (5, False, True, "timed-out")
    assert f"GPU {gpu} " in late.stderr
    output_of(autoclave("simulate", "heal", gpu))
    service.settled(gpu, "clean")


def on_a_terminal(service, *args):
    """What a verb writes when stdout and stderr are a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    env = {"TERM": "xterm-256color", "COLUMNS": "80"}
    with service.popen(*args, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as verb:
        os.close(theirs)
        chunks = []
        try:
            while chunk := os.read(ours, 65536):
                chunks.append(chunk)
        except OSError:  # the kernel reports that no process writes any more
            pass
        os.close(ours)
    return verb.returncode, b"".join(chunks).decode()


def test_only_a_terminal_gets_trouble_first_and_totals(autoclave, service, gpu):
    output_of(autoclave("quarantine", gpu, "--reason", "test"))
    total = len(items(autoclave("status", "-o", "json")))
    code, text = on_a_terminal(service, "status")
    drawn = text.splitlines()
    assert (code, "\x1b[32mclean" in text, "─" in text) == (0, True, True)
    assert "quarantined" in drawn[2]
    assert [drawn[-2].partition(": ")[0], drawn[-1].partition(",")[0]] == [f"{total} GPUs", "fence: none stands"]
    piped = output_of(autoclave("status")).splitlines()
    assert [line.split()[0] for line in piped[1:]] == [str(index) for index in range(total)]
    bare = on_a_terminal(service, "status", "--no-headers", gpu)[1]
    assert "GPUs: " not in bare
    assert "HEALTHY" not in bare
    output_of(autoclave("reinstate", gpu))


def test_a_scrub_on_a_terminal_shows_progress_bars(service, gpu):
    code, text = on_a_terminal(service, "scrub", gpu)
    assert code == 0
    assert f"GPU {gpu} clean" in text
    assert "━" in text
    code, text = on_a_terminal(service, "scrub", gpu, "-q")
    assert (code, "━" in text) == (0, False)


@pytest.mark.usefixtures("service")
def test_watching_what_is_not_there_ends_at_once(autoclave, tmp_path):
    assert autoclave("status", "99", "--watch").exit_code == 2
    nowhere = {"AUTOCLAVE_RUN_DIR": str(tmp_path), "AUTOCLAVE_SERVICE_WAIT": "0s"}
    assert autoclave("status", "--watch", **nowhere).exit_code == 3


@pytest.mark.parametrize("backend", ["nvidia", "auto"])
def test_without_hardware_nothing_is_simulated_unless_requested(autoclave, short_tmp, backend):
    where = ("--run-dir", short_tmp / "r", "--state-dir", short_tmp / "s", "--host-root", short_tmp / "no")
    policy = short_tmp / "policy.yaml"  # for a fence, the service would enter a control group: here, that of all tests
    policy.write_text("name: test\ndefaults: {fence: {mode: off}}\n")
    run = autoclave("scrubber", "--backend", backend, *where, "--policy", policy)
    left = json.loads((short_tmp / "r/last-error").read_text())
    assert f"autoclave: {left['message']}\n" == run.stderr
    assert run.exit_code == 1  # a driver may be loaded later: systemd tries again
    output_of = f"cannot find the NVIDIA driver: {short_tmp}/no/proc/driver/nvidia/version: no such file or directory"
    assert output_of in run.stderr
    assert ("for simulated GPUs use --backend simulated" in run.stderr) is (backend == "auto")
    where = ("--run-dir", short_tmp / "other", *where[2:])  # the first one is locked until this process ends
    run = autoclave("scrubber", *where, "--policy", short_tmp / "none.yaml", "--backend", "simulated")
    assert (run.exit_code, "none.yaml" in run.stderr) == (2, True)
