"""``autoclave access`` on the stand-ins for kubectl, docker, podman and srun: each way, open and closed."""

from __future__ import annotations

import os
import random
import signal
import threading

import pytest

from access import kubernetes, pod_states, run_report, trials
from access.attached import Attached, docker, slurm
from access.hearing import Secrets
from access.interruption import SIGNALS, Interruption
from access.kubernetes import Pods
from access.manifest_files import PROBE, Cluster
from access.probe_answers import Answer, Refused, Unanswered, Unsuited
from access.way_verdict import Verdict, exit_code
from access.ways import WAYS, Place
from containers.commands import ContainerFailed
from tests.access.stand_ins import NODES, Node, digest
from tests.cli.on_machine import needs_namespace

pytestmark = needs_namespace

NAMES = [way.name for way in WAYS]


@pytest.fixture
def node(tmp_path, monkeypatch):
    for programs in (made := Node(tmp_path)).serve():
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        yield made


def pods(tell=lambda _: None, **more) -> Pods:
    cluster = Cluster(**{"node": "node-1", "image": "ours:1", "nodes": NODES, "variable_image": "variable:1", **more})
    return Pods(cluster, Interruption(), tell, pause=0.05)


def containers(place):
    match place:
        case Place.KUBERNETES:
            return pods()
        case Place.SLURM:
            return slurm("node-1", 1, NODES, Interruption())
    return docker(place, "ours:1", "variable:1", "/dev/gpu0", NODES, Interruption())


def run(node, place=Place.KUBERNETES, chosen=NAMES, made=None) -> tuple[trials.Run, dict[str, Verdict]]:
    done = trials.run(place, made or containers(place), chosen, lambda _: None)
    assert node.leftovers == []
    return done, {finding.way.name: finding.verdict for finding in done.findings if finding.chosen}


APPLY = {place: [way.name for way in WAYS if place not in way.not_at] for place in Place}


@pytest.mark.parametrize("place", Place)
def test_what_is_open_is_found_in_every_way(node, place):
    node.leaks = set(NAMES)
    done, found = run(node, place)
    assert {name for name, verdict in found.items() if verdict is Verdict.FAIL} == set(APPLY[place]), done.findings
    outcomes = [finding.outcome for finding in done.findings if isinstance(finding.outcome, Answer)]
    assert all(outcome.numbers >= {"c:1:7"} for outcome in outcomes)
    assert exit_code(done.owner, done.findings) == 1


@pytest.mark.night
@pytest.mark.parametrize(("place", "name"), [(place, name) for place in Place for name in APPLY[place]])
def test_a_way_that_is_open_is_found_alone(node, place, name):
    node.leaks = {name, "handed-on"} if name == "kept-open" else {name}
    done, found = run(node, place, {name})
    assert (found.pop(name), done.ended_by) == (Verdict.FAIL, None), done.findings
    found.pop("no-request", None)
    assert exit_code(done.owner, done.findings) == 1
    if name not in ("leftover", "kept-open"):
        [finding] = [finding for finding in done.findings if finding.way.name == name]
        assert isinstance(finding.outcome, Answer)
        assert finding.outcome.numbers >= {"c:1:7"}


@pytest.mark.parametrize("place", Place)
def test_what_is_closed_passes_in_every_way(node, place):
    node.leaks = {"handed-on"} if place is Place.KUBERNETES else set()
    done, found = run(node, place)
    passes = dict.fromkeys(APPLY[place], Verdict.PASS)
    if place is Place.KUBERNETES:
        passes["handed-on"] = Verdict.FAIL  # so that the node can be kept open
    whys = {finding.way.name: finding.why for finding in done.findings}
    assert found == {**dict.fromkeys(NAMES, Verdict.NOT_APPLICABLE), **passes}, (whys, done.ended_by)
    assert isinstance(done.owner, Answer)
    assert done.owner.opened == ("/dev/gpu0 c:1:7",)
    images = [done.facts.get(name) for name in ("image", "variable image")]
    assert images == ([None, None] if place is Place.SLURM else [digest("ours:1"), digest("variable:1")])
    assert exit_code(done.owner, done.findings) == int(place is Place.KUBERNETES)


def test_what_the_cluster_refuses_passes_with_its_reason(node):
    node.refuses = {"privileged"}
    done, found = run(node, chosen={"privileged"})
    [why] = [finding.why for finding in done.findings if finding.way.name == "privileged"]
    assert found == {"no-request": Verdict.PASS, "privileged": Verdict.PASS}
    assert 'refused at admission: pods "privileged" is forbidden: violates PodSecurity' in why


def test_plain_pods_are_root_only_where_that_is_admitted(node):
    node.refuses_root = True
    done, found = run(node, chosen={"own-node"})
    assert (done.facts["user of plain pods"], found["no-request"]) == ("65532", Verdict.PASS)
    assert found["own-node"] is Verdict.PASS  # it needs root, and is refused


def test_a_new_namespace_may_need_a_moment(node):
    account = 'error looking up service account n/default: serviceaccount "default" not found'
    node.not_yet = [account, "status unknown for quota: at-most, resources: pods"]
    done, found = run(node, chosen={"variable"})
    assert (done.facts["user of plain pods"], found["variable"], node.not_yet) == ("0", Verdict.PASS, [])


def test_a_cluster_that_refuses_a_plain_pod_gives_no_answer(node):
    node.refuses = {"no-request"}
    done, found = run(node)
    assert "a pod without a GPU and without rights is refused" in str(done.ended_by)
    assert (set(found.values()), exit_code(done.owner, done.findings)) == ({Verdict.NOT_TRIED}, 2)


def test_a_pod_that_cannot_end_does_not_end_the_run(node, monkeypatch):
    monkeypatch.setattr(trials, "HELD_BACK", 2.0)
    monkeypatch.setattr(kubernetes, "_ENDS_WITHIN", 1.0)
    node.leaks, node.holds_up_sharing = {"handed-on"}, True
    result, verdicts = run(node)
    assert (result.ended_by, verdicts["handed-on"]) == (None, Verdict.FAIL)
    assert "kept-open" in verdicts


def test_a_namespace_that_is_still_there_is_said(node, monkeypatch):
    monkeypatch.setattr(kubernetes, "COMMANDS_WITHIN", 1.0)
    node.lingers, made = True, pods()
    done = trials.run(Place.KUBERNETES, made, ["variable"], lambda _: None)
    assert done.left_behind == f"the namespace {made.own.namespace} was not gone within 1 s"


def test_the_next_pod_waits_before_the_owners_is_deleted(node):
    waited = []
    node.on_command = lambda _: waited.append("leftover" in node.pods) if "--force" in node.said[-1] else None
    run(node, chosen={"leftover"})
    assert waited == [True]


@pytest.mark.parametrize("waits", [True, False])
def test_a_left_process_that_ended_passes_only_if_awaited(node, waits):
    """The next pod may only have been too slow to find it: kept-open shows which."""
    node.ends_at_once, node.leaks = True, {"handed-on"} if waits else {"handed-on", "kept-open"}
    _, found = run(node, chosen={"leftover", "kept-open"})
    assert (found["kept-open"], found["leftover"]) == (
        (Verdict.PASS, Verdict.PASS) if waits else (Verdict.FAIL, Verdict.NOT_TRIED)
    )


def test_the_headline_names_the_way_that_was_not_tried(node):
    node.ends_at_once, node.refuses = True, {"sharing-owner"}
    done, found = run(node)
    assert (found["leftover"], found["kept-open"]) == (Verdict.NOT_TRIED, Verdict.PASS)
    assert run_report.headline(done).endswith(" tried: leftover. To have an answer about the other ways, leave out what"
                                              " was not tried, as with `--without leftover`.")  # fmt: skip
    done, _ = run(node, chosen={*NAMES} - {"leftover"})
    assert exit_code(done.owner, done.findings) == 0


def test_a_gpu_held_back_may_go_to_a_third(node):
    """The process that has it open may run on, and a service cleans the GPU after its end."""
    node.waiting = {"leftover-2": ("CreateContainerError", "in use")}
    node.leaks = {"handed-on"}  # so that the node can be kept open
    done, found = run(node, chosen={"leftover", "kept-open"})
    assert (done.ended_by, found["leftover"]) == (None, Verdict.PASS), done.findings


@pytest.mark.parametrize(
    ("reason", "words", "verdict"),
    [
        ("RunContainerError", "as the runtime says", Verdict.NOT_TRIED),
        ("CreateContainerError", "as the runtime says", Verdict.NOT_TRIED),
        ("CreateContainerError", "unresolvable CDI devices nvidia.com/gpu=all", Verdict.NOT_APPLICABLE),
        ("ImagePullBackOff", "as the runtime says", Verdict.NOT_TRIED),
        ("ContainerCreating", "as the runtime says", Verdict.NOT_TRIED),
    ],
)
def test_an_error_of_the_runtime_is_no_pass(node, monkeypatch, reason, words, verdict):
    monkeypatch.setattr(trials, "OUTSIDERS_WITHIN", 3.0)  # of a pod that never starts; the others answer
    node.waiting = {"variable": (reason, words)}
    done, found = run(node, chosen={"variable"})
    [why] = [finding.why for finding in done.findings if finding.way.name == "variable"]
    assert (found["variable"], f"{reason}: {words}" in why) == (verdict, True), why


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("Error from server (Forbidden): pods is forbidden: violates PodSecurity", Refused),
        ('Error from server: admission webhook "x" denied the request: no', Refused),
        ("The pods \"p\" is invalid: ValidatingAdmissionPolicy 'x' denied request: no", Refused),
        ('Error from server (Forbidden): pods "p" is forbidden: exceeded quota: at-most', Unanswered),
        ('Error from server (Forbidden): pods "p" is forbidden: status unknown for quota: at-most', Unanswered),
        ('Error from server (Forbidden): pods "p" is forbidden: RuntimeClass "nvidia" not found', Unsuited),
        ("Unable to connect to the server: timeout", Unanswered),
        ("", Unanswered),
    ],
)
def test_a_quota_or_a_silence_is_no_refusal(words, kind):
    assert isinstance(pod_states.refusal(words), kind)


@pytest.mark.parametrize("right", ["create namespaces", "delete namespaces", "delete pods", "get pods/log"])
def test_nothing_is_made_without_every_right(node, right):
    node.denied = {right}
    with pytest.raises(ContainerFailed, match=f"this account may not {right}: "):
        pods().expect()
    assert not any({"create", "delete"} & set(words) and "can-i" not in words for words in node.said)


ASKED = "that the owner asks for; check --resource and --count"


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"node": "nod"}, "the cluster has no node nod; check --node: it has node-1"),
        ({"device_class": "gpu"}, "the cluster has no deviceclass gpu; check --device-class: it has gpu.example"),
        ({"resource": "a/b"}, f"the node node-1 has 0 of the 1 a/b {ASKED}: it has nvidia.com/gpu (4)"),
        ({"count": 5}, f"the node node-1 has 4 of the 5 nvidia.com/gpu {ASKED}: it has nvidia.com/gpu (4)"),
    ],
)
def test_a_flag_that_names_what_is_not_there_is_named(node, flags, why):
    with pytest.raises(ContainerFailed) as refused:
        pods(**flags).expect()
    assert refused.value.why == why
    node.hides = True  # the account may not read it: then the scheduler says it
    pods(**flags).expect()


@pytest.mark.parametrize("healthy", [0, 1, 2])
def test_the_owner_waits_aloud_for_healthy_gpus(node, healthy):
    """They are waited for: a scrub may end soon."""
    said: list[str] = []
    node.healthy = {"nvidia.com/gpu": str(healthy)}
    pods(count=2, tell=said.append).expect()
    waits = f"owner waits: {healthy} of the 4 nvidia.com/gpu on the node node-1 are healthy, "
    assert [line.startswith(waits) for line in said] == [True] * (healthy < 2)


def test_an_owner_without_a_node_ends_the_run_early(node, monkeypatch):
    monkeypatch.setattr(kubernetes, "PLACED_WITHIN", 1.0)
    said: list[object] = []
    node.unplaced = {"owner": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}
    done, _ = run(node, made=pods(tell=said.append))
    why = f"it did not start within 1 s: {node.unplaced['owner']}; check --node, --resource and --count"
    assert str(done.ended_by) == f"cannot go on: the owner did not get its GPU: {why}"
    assert said == [f"owner waits: {node.unplaced['owner']}"]  # at once


ODD = {
    "a line without end": ("while True: sys.stdout.write('x' * 4096)", "said more than 65536 bytes, and no answer"),
    "a drip": ("while True: sys.stdout.write('.'), sys.stdout.flush(), time.sleep(0.01)", "gave no answer within 2 s"),
    "many lines": ("while True: print('x')", "answered 'x', which is no answer of the probe"),
    "escape sequences": ("print(chr(27) + '[2J' + chr(7))", "answered ' [2J ', which is no answer"),
    "a GPU of another run": ("print(json.dumps({'nonce': 'x'}))", "is no answer of the probe"),
    "silence": ("sys.exit(3)", "ended with status 3: it wrote nothing"),
}


@pytest.mark.parametrize(("odd", "why"), ODD.values(), ids=ODD)
def test_the_run_goes_on_after_an_odd_container(node, monkeypatch, odd, why):
    monkeypatch.setattr(trials, "OUTSIDERS_WITHIN", 2.0)
    node.odd = {"variable": f"import json, sys, time\n{odd}"}
    done, found = run(node, Place.PODMAN, {"variable", "host-pid"})
    [finding] = [finding for finding in done.findings if finding.way.name == "variable"]
    assert (finding.verdict, why in finding.why) == (Verdict.NOT_TRIED, True), finding.why
    assert finding.why.isprintable()
    assert len(finding.why) < 500
    assert (found["host-pid"], done.ended_by) == (Verdict.PASS, None)


def test_an_owner_without_a_gpu_ends_the_run(node):
    node.gpus = []
    done, found = run(node, Place.PODMAN, {"privileged"})
    assert str(done.ended_by) == "cannot go on: the owner did not get its GPU: it opened no node that --nodes names"
    assert set(found.values()) == {Verdict.NOT_TRIED, Verdict.NOT_APPLICABLE}
    assert exit_code(done.owner, done.findings) == 2


def test_an_owner_that_ends_early_makes_no_way_pass(node):
    node.odd = {
        "owner": f"import runpy, sys; sys.argv[1:] = {OWN!r}; runpy.run_path({str(PROBE)!r}, run_name='__main__')"
    }
    made = containers(Place.PODMAN)
    made.own = Secrets(nonce="0" * 8)
    _, found = run(node, Place.PODMAN, {"privileged"}, made)
    assert (found["no-request"], found["privileged"]) == (Verdict.NOT_TRIED, Verdict.NOT_TRIED)


def test_no_container_is_removed_while_it_is_made(tmp_path):
    """A command that makes one, and is killed meanwhile, may leave a process behind."""
    made = f"read line <{tmp_path}/go; touch {tmp_path}/made; echo answer"
    os.mkfifo(tmp_path / "go")
    place = Attached(lambda *_: ["sh", "-c", made], lambda _: ["rm", str(tmp_path / "made")], Interruption(), NODES, [])
    place.start("owner")
    threading.Thread(target=(tmp_path / "go").write_text, args=("x\n",), daemon=True).start()
    place.close()  # fails if there is nothing to remove
    assert not (tmp_path / "made").exists()


OWN = ["own", "--nonce=00000000", f"--secret={'0' * 32}", f"--nodes={NODES}"]


STARTED = 11  # commands before the last pod, which may answer at once: then nothing hears an interruption
SEEDS = [pytest.param(seed, marks=pytest.mark.night if seed > 5 else ()) for seed in range(20)]


@pytest.mark.parametrize("seed", SEEDS)
def test_an_interruption_at_any_moment_leaves_nothing(node, seed):
    """A real signal, in the middle of a command: the first one, the last one, and 18 between."""
    made, last, moments = pods(), 18, random.Random(seed)  # noqa: S311 - no secret; so many commands has a whole run
    number = moments.choice(SIGNALS)
    moment = {0: 1, 1: last}.get(seed, moments.randint(2, last - 1))
    node.on_command = lambda count: os.kill(os.getpid(), number) if count == moment else None
    before = {each: signal.getsignal(each) for each in SIGNALS}
    try:
        made.interruption.listen()
        done, _ = run(node, chosen={"no-request"}, made=made)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert made.interruption.noted, f"a run has only {len(node.said)} commands"
    assert isinstance(done.ended_by, KeyboardInterrupt) or moment > STARTED
