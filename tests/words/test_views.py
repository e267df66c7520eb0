"""What is shown of a device is what its record says, in the words of the stable contract."""

from dataclasses import replace
from functools import partial

import pytest

from policies.values import FenceMode
from scrub_api import views
from scrub_api.measurements import Uncovered
from scrubber.core import events as ev
from scrubber.core import offering
from scrubber.core.ailment_traits import AILMENTS
from scrubber.core.model import Ailment, AilmentKind, Holder, Owner, ScrubPath, Sign, Step, Stuck
from scrubber.core.repeated_uses import RepeatedUse, UnauthorisedUse
from scrubber.words import device_status
from scrubber.words.device_status import DeviceWas
from tests.core import lives
from tests.core.lives import ENFORCE, NOW, later, live

AT = later(10)


def shown(record, **progress):
    offer = offering.offer(record, ENFORCE, AT)
    return device_status.device_status(record, offer, "rule-1", ENFORCE, AT, device_status.Progress(**progress))


PLACED = replace(lives.DEVICE, numa_node=1, pci_address="0000:41:00.0", mig=True)


def test_a_clean_device_shows_its_place_and_receipt():
    record = live(lives.CLEAN, ev.Described(PLACED))
    assert shown(record) == views.DeviceStatus(
        device="GPU-1", index=0, model="NVIDIA H100 80GB HBM3", state="clean", since=NOW.wall, healthy=True,
        why="clean", memory_bytes=1000, numa_node=1, pci_address="0000:41:00.0", mig=True,
        receipt=device_status.receipt_view(lives.proof(record)),
        owner="", job=None, quarantine=None, policy_rule="rule-1", policy_mode="enforce", setback="",
        driver="driver-1", resource="nvidia.com/gpu",
    )  # fmt: skip
    assert (shown(lives.CLEAN).pci_address, shown(lives.CLEAN).numa_node) == ("", None)


def test_a_receipt_view_has_every_field():
    rest = (Uncovered("own context", 7),)
    receipt = replace(lives.proof(lives.CLEAN), residue_at=(16, 4096), uncovered=rest, previous="0000",
                      envelope=lives.ENVELOPE)  # fmt: skip
    steps = tuple(views.StepTime(step.value, 0.25) for step, _ in receipt.steps)
    assert device_status.receipt_view(receipt) == views.ReceiptView(
        id=receipt.id, path="slow", finished=NOW.wall, covered_bytes=1000, allocatable_bytes=1000, residue_bytes=0,
        processes_found=0, processes_terminated=0, policy="defaults", policy_digest=ENFORCE.proof_digest,
        digest=receipt.digest, previous="0000", driver="driver-1", boot_id="boot-1", steps=steps,
        residue_at=(16, 4096), uncovered=rest,
        patterns=("random", "zero"), units=132, units_reached=132, tests=("address", "arithmetic"),
        signed_by="0123456789abcdef",
    )  # fmt: skip
    assert " ".join(step.step for step in steps) == "evict clear verify scratch selftest settings health"
    unsigned = device_status.receipt_view(lives.proof(lives.CLEAN))
    assert (unsigned.previous, unsigned.signed_by) == ("", "")


ACQUIRED = replace(lives.grant(lives.CLEAN), owner="4711")


@pytest.mark.parametrize(
    ("record", "owner"),
    lives.rows(
        ("a pod", lives.IN_USE, "pod-a"),
        ("a process without a container", lives.USED_BY_HOST, "unknown"),
        ("nobody", lives.CLEAN, ""),
        ("who acquired it", lives.but(lives.GRANTED, grant=ACQUIRED), "4711"),
        ("who acquired it, before the container of its job", lives.but(lives.IN_USE, grant=ACQUIRED), "4711"),
    ),
)
def test_the_owner_is_shown_where_there_is_one(record, owner):
    assert shown(record).owner == owner


HELD = {"pod-a": ("main", "init"), "pod-b": ("app",)}
NAMES = {"pod-a": "ns/train", "pod-b": "ns/serve"}


@pytest.mark.parametrize(
    ("record", "held", "names", "pod"),
    lives.rows(
        ("an owner by its name and its containers", lives.IN_USE, HELD, NAMES, "ns/train/init, ns/train/main"),
        ("by its name alone without containers", lives.IN_USE, {}, NAMES, "ns/train"),
        ("not at all without a name", lives.IN_USE, HELD, {"pod-b": "ns/serve"}, ""),
        ("an owner that was never learnt", lives.USED_BY_HOST, HELD, NAMES, ""),
        ("an owner whatever else is written down", lives.IN_USE_BY_B, HELD, NAMES, "ns/serve/app"),
        ("before a start whoever is written down", lives.GRANTED, {"pod-b": ("app",)}, NAMES, "ns/serve/app"),
        ("by the UID without a name", lives.GRANTED, {"pod-b": ("app",)}, {}, "pod-b"),
        ("all of them", lives.GRANTED, HELD, {"pod-b": "ns/serve"}, "pod-a, ns/serve/app"),
        ("none for a job, whoever is written down", lives.but(lives.GRANTED, grant=ACQUIRED), HELD, NAMES, ""),
        ("nobody, if nobody is", lives.GRANTED, {}, NAMES, ""),
        ("nobody's device, whoever is written down", lives.CLEAN, HELD, NAMES, ""),
        ("one that was left, whoever is written down", lives.DIRTY, HELD, NAMES, ""),
    ),
)  # fmt: skip
def test_a_device_shows_the_names_of_its_pods(record, held, names, pod):
    assert device_status.pod(record, held, names) == pod
    assert device_status.may_have_pod(record) or not pod


def test_a_job_shows_its_step_and_place_in_the_queue():
    record = lives.SCRUBBING
    about = ("job-1", "fast", "release")
    waits = views.JobStatus(*about, "clear", NOW.wall, 64, 1000, queue_place=12)
    assert shown(record, done=64, total=1000, queue_place=12, step=Step.CLEAR).job == waits
    runs = shown(record, runs=(NOW.uptime + 3, 60.0)).job  # it was asked about 10 seconds after the start
    assert (runs.step_seconds, runs.step_limit) == (7.0, 60.0)
    assert [shown(record, last=AT.uptime - still).job.stalled for still in (14.9, 15.0)] == [False, True]
    assert shown(lives.SCRUBBING).job == views.JobStatus(*about, "", NOW.wall, 0, 0)
    measured = lives.but(lives.SCRUBBING, fast_seconds=(11.0, 14.0, 90.0))  # it has run for 10 seconds
    assert shown(measured).job.ready_seconds == 4.0
    assert shown(measured, queue_place=2).job.ready_seconds is None
    assert shown(lives.but(measured, fast_seconds=(9.0,))).job.ready_seconds is None
    assert shown(lives.CLEAN, queue_place=12).job is None


def test_a_step_that_hangs_past_its_limit_needs_a_person():
    stalled = views.JobStatus("job-1", "fast", "release", "clear", NOW.wall, 64, 1000, None, None, 61.0, 60.0, 41.0)
    [first, _, last] = device_status.advice_if_stalled(stalled)
    assert first == "clear makes no progress, and its process does not end"
    assert "drain and reboot the node" in last
    assert [*device_status.advice_if_stalled(replace(stalled, still_seconds=None))] == []


def test_a_quarantine_shows_when_it_will_be_tried_again():
    assert shown(lives.QUARANTINED).quarantine == views.QuarantineStatus(
        "lost",
        "the device has fallen off its bus",
        NOW.wall,
        "autoclave",
        0,
        sticky=False,
        next_probe_seconds=50.0,
        next_path="reset",
    )


def test_an_overdue_probation_is_shown_as_due_now():
    assert device_status.quarantine_status(lives.quarantine(), ScrubPath.SLOW, later(1000)).next_probe_seconds == 0.0


def test_a_sticky_quarantine_shows_no_next_probe():
    status = shown(lives.STICKY).quarantine
    assert (status.sticky, status.next_probe_seconds) == (True, None)


def test_a_setback_shows_why():
    assert shown(lives.SET_BACK).setback == "a process is on it"


TRAIN = Holder(7, 1.0, "train", "pod-a")
HUNG = (
    'no signal ends "train" (pid 7), because it waits in the kernel: `cat /proc/7/stack`',
    "if it stays there, drain and reboot the node",
)
END = 'end "train" (pid 7): `kill 7`', "if that does not help: `kill -9 7`"


@pytest.mark.parametrize("kind", AilmentKind)
def test_every_ailment_has_its_advice(kind):
    ailment = Ailment(kind, "so it is")
    kept = live(lives.CLEAN, ev.Quarantined(lives.quarantine(ailment)))
    in_use = live(lives.IN_USE, ev.AilmentFound(ailment))
    advice = device_status.advice(kept)
    assert advice == tuple(words.format(gpu="0") for words in AILMENTS[kind].advice)
    for words in advice:
        assert words.isprintable()
        assert words.count("`") in (0, 2), "one command at most"
        assert words.count("autoclave reinstate") == words.count("autoclave reinstate 0")
        assert "reboot" not in words or "drain" in words.partition("reboot")[0]
    assert advice[0][0].islower()
    waits = "wait for the end of its owner", "`autoclave reinstate 0` withdraws the quarantine"
    ends = "let its owner end first", f"then {advice[0]}", *advice[1:]
    assert device_status.advice(in_use) == (waits if kind is AilmentKind.OPERATOR else ends)
    held = device_status.advice(kept, holders=[TRAIN])
    first = "no test can pass while a process has the GPU open"
    assert held == (advice if kind is AilmentKind.STUCK_PROCESS else (first, *END, *advice))
    begin, *_, served = device_status.advice(lives.CLEAN, signs=(Sign(kind, "so it is"),))
    assert begin == f"{kind.value}: {advice[0]}"
    assert served.startswith("the GPU stays in service")


def test_after_xid_79_a_person_waits_for_the_test():
    ailment = Ailment(AilmentKind.XID, "xid 79 was reported", xid=79)
    assert device_status.advice(live(lives.CLEAN, ev.Quarantined(lives.quarantine(ailment)))) == (
        "wait: Autoclave tests the GPU again automatically, with a reset",
        "if the test fails, drain and reboot the node",
        "Autoclave tests the GPU again automatically after the reboot",
    )


def test_no_advice_ends_the_owner_for_another_process():
    grant = replace(lives.grant(lives.CLEAN, announced=False), until_release=True, owner="job 7")
    record = live(lives.CLEAN, ev.Granted(grant))
    advice = device_status.advice(record, holders=[TRAIN, HOST], foreign=FOREIGN_FIRST, others=[HOST])
    assert advice == (
        *FOREIGN_FIRST,
        "if its owner 'job 7' has ended, end the processes that it has left behind", *END,
        "then give it back: `autoclave release 0 --owner 'job 7'`",
    )  # fmt: skip


FOREIGN_FIRST = ("what is said of others",)
KEEPS = "has ended 17 proofs or scrubs of the GPU recently"
LOOK = "let Linux record who opens it: `auditctl -w /dev/nvidia3 -k autoclave`"
READ = "read the records a minute later: `ausearch -k autoclave -i`"
HOST = Holder(8, 1.0, "loop", None)
EVIL = Holder(9, 1.0, "evil", "pod-b")
KNOWN = {"pod-a": "team/a-0", "pod-b": "ns/b"}
SAVE = "first save what `autoclave ledger export` prints"
MAY_MONITOR = (
    "if it is a monitor, and tenants cannot create pods there: add {} to evict.operator_namespaces"
    " (policy.operatorNamespaces of the chart)"
)
MONITOR = (
    MAY_MONITOR.format("ns"),
    "unless that monitor is NVIDIA's, also add ns:PATH to evict.bystanders, or it keeps the GPU out",
)
END_IT = "if nobody knows it, treat it as a break-in, and end it:"


def on_others(record, *others, units=device_status.NO_UNITS, tenants=device_status.NO_PODS):
    return tuple(device_status.on_others(record, others, KNOWN, units, tenants, kubelet=True))


def test_the_ledger_is_saved_before_anybody_is_ended():
    assert on_others(lives.IN_USE, EVIL, tenants={"pod-b": "1, 2"}) == (
        'the GPU was not given to "evil" (pid 9, ns/b): the data of team/a-0 may have been read', SAVE,
        "save the specification of its pod: `kubectl -n ns get pod b -o yaml`", *MONITOR,
        "the pod ns/b is also the tenant of GPU 1, 2: if you end it, its work there ends, too", END_IT,
        'end the pod of "evil" (pid 9): `kubectl -n ns delete pod b`', "if that pod is gone already: `kill -9 9`",
    )  # fmt: skip
    assert on_others(lives.IN_USE) == ()


@pytest.mark.parametrize(
    ("record", "end"),
    lives.rows(
        ("clean", lives.SOILED, "if nobody needs it, end it:"),
        ("it is on it", lives.FOUND_IN_USE, "if nobody needs it, end it:"),
        ("not scrubbed since", lives.DIRTY, f"no scrub has passed since the last tenant, so {END_IT}"),
    ),
)
def test_who_opens_an_idle_gpu_is_no_break_in(record, end):
    """A monitor does that on each node. No data of a tenant can be read, unless the last one has left some."""
    other = replace(EVIL, container=lives.B)
    first, *rest = device_status.on_others(record, [other], {lives.B: "ns/b"}, {}, {}, kubelet=True)
    assert (first, end in rest, SAVE in rest) == (
        'the idle GPU was opened by "evil" (pid 9, ns/b)', True, "break-in" in end,
    )  # fmt: skip
    use = UnauthorisedUse({lives.B: "ns/b"}, NOW.wall, wiped=False)
    was = device_status.device_was(record)
    first, *_, last = device_status.after_use(use, "3", "", FenceMode.OFF, was=was, kubelet=True)
    assert (first.startswith("the idle GPU was opened by pod ns/b"), "break-in" in last) == (True, "break-in" in end)


def test_who_is_beside_an_unannounced_owner_may_be_one():
    """Nobody knows whether that owner is a tenant."""
    assert device_status.device_was(lives.FOUND_IN_USE, [HOST]) is DeviceWas.GIVEN
    owner = replace(EVIL, container=lives.B)
    first, *_ = on_others(lives.FOUND_IN_USE, HOST, owner)
    both = '"loop" (pid 8, no container), "evil" (pid 9, ns/b)'
    assert first == f"nobody was given the GPU that {both} have open: they may have read each other's data"
    first, *_ = on_others(lives.FOUND_IN_USE, HOST)
    assert first.endswith("(pid 8, no container): the data of ns/b may have been read")
    first, *_ = on_others(lives.USED_BY_B, HOST, owner)
    assert first == f"the GPU was not given to {both}"


def test_advice_on_many_foreign_processes_is_short():
    """One process of each pod, so that no pod hides the next one."""
    pods = {f"pod-{name}": f"ns-{name}/x" for name in "bcde"}
    evil = [Holder(pid, 1.0, "evil", pod) for pod in pods for pid in (len(pod), 10 + list(pods).index(pod))]
    said = [*device_status.on_others(lives.CLEAN, evil, pods, {}, {}, kubelet=True)]
    more = "ns-d/x) and 5 more (all: `autoclave status 0 -o json`)"
    assert (more in said[0], sum("evict.operator_namespaces" in it for it in said)) == (True, 3)
    assert [it for it in said if "ns-e" in it] == []
    uses = [RepeatedUse(Holder(9, 1.0, f"loop{number}", None), 17) for number in range(5)]
    *_, last = device_status.keeps_out(uses, {}, {}, "3", "")
    assert last == "2 other programs did so, too, and not more often: `autoclave history 3 --warnings` names all"
    places = {f"uid-{number}": f"ns-{number}/x" for number in range(5)}
    use = UnauthorisedUse(places, NOW.wall, wiped=False)
    first, *rest = device_status.after_use(use, "3", "hold", FenceMode.HOLD, kubelet=True)
    assert ("pod ns-2/x (uid-2) and 2 more, without a grant" in first, len(rest)) == (True, 2 + 2 * 3)


@pytest.mark.parametrize("advice", ["on others", "keeps out", "after a use"])
def test_no_advice_exempts_tenants_or_who_is_exempt(advice):
    """The namespace of a tenant must not be exempt: its pods could then open all GPUs."""
    known = {f"pod-{name}": f"{name}/x" for name in ("tenants", "monitors", "others")}
    holders = [Holder(9, 1.0, "x", pod) for pod in known]
    namespaces = device_status.Namespaces(exempt=["monitors"], of_tenants=["tenants"])
    match advice:
        case "on others":
            said = device_status.on_others(lives.CLEAN, holders, known, {}, {}, namespaces, kubelet=True)
        case "keeps out":
            uses = [RepeatedUse(holder, 17) for holder in holders]
            said = device_status.keeps_out(uses, {}, known, "3", "", namespaces=namespaces)
        case _:
            use = UnauthorisedUse(known, NOW.wall, wiped=False)
            said = device_status.after_use(use, "3", "", FenceMode.OFF, (), namespaces, kubelet=True)
    adds = [it for it in said if "add " in it]
    assert [it.partition("add ")[2].partition(" to ")[0] for it in adds] == ["monitors:PATH", "others", "others:PATH"]


def test_a_use_before_the_exemption_needs_nothing():
    use = UnauthorisedUse({"/system.slice/x.service": "", "uid-1": "ns/x"}, NOW.wall, wiped=False)
    after = partial(device_status.after_use, use, "3", "hold", FenceMode.HOLD, kubelet=True)
    [said] = after(exempt=use.places)
    assert said.endswith(", before the policy exempted it: see `autoclave history 3 --warnings`")
    first, *rest = after(exempt=["/system.slice/x.service"])
    assert first.startswith("the GPU was used by pod ns/x (uid-1), without a grant")
    assert "exempt.units" not in "".join(rest)


def test_a_host_program_is_exempted_or_its_unit_stopped():
    assert on_others(lives.IN_USE, HOST, units={HOST: "mymon.service"})[1:] == (
        SAVE, "if it is a person: they request a GPU through Kubernetes",
        "if it is a daemon that may open GPUs: add mymon.service to fence.exempt.units (policy.exempt of the chart)",
        OF_NODE[2], END_IT,
        'end "loop" (pid 8) of mymon.service: `systemctl stop mymon.service`',
        "that ends all of mymon.service; to end the process alone: `kill 8`",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("record", "tenant"),
    lives.rows(
        ("a pod by its name", lives.IN_USE, "team/a-0"),
        ("a pod by its UID", live(lives.GRANTED, ev.PutInUse(Owner("pod-c", NOW))), "pod pod-c"),
        ("a job", live(lives.CLEAN, ev.Granted(replace(lives.grant(lives.CLEAN), owner="job 7"))), "job 7"),
        ("one without a name", lives.KEPT, "its tenant"),
        ("a process", lives.USED_BY_HOST, "its tenant"),
        ("nobody who has started", lives.GRANTED, ""),
        ("nobody", lives.CLEAN, ""),
    ),
)  # fmt: skip
def test_the_tenant_is_named_by_the_best_name(record, tenant):
    assert device_status.tenant(record, KNOWN) == tenant


@pytest.mark.parametrize(
    ("last", "users", "pods", "advice"),
    lives.rows(
        ("a pod", TRAIN, {}, {"pod-a": "team/a-0"},
         (f'"train" (pid 7, team/a-0) {KEEPS}',
          'end the pod of "train" (pid 7): `kubectl -n team delete pod a-0`',
          "if that pod is gone already: `kill -9 7`",
          MAY_MONITOR.format("team"),
          "unless that monitor is NVIDIA's, also add team:PATH to evict.bystanders, or it keeps the GPU out")),
        ("a process that runs", HOST, {HOST: "ann"}, {},
         (f'"loop" (pid 8, user ann, no container) {KEEPS}',
          'end "loop" (pid 8): `kill 8`', "if that does not help: `kill -9 8`",
          "if the node needs it: add the path of its program to evict.bystanders, so that its uses end no proof")),
        ("one that has ended", HOST, {}, {},
         (f'"loop" (pid 8, no container) {KEEPS}, and is not running now', LOOK, READ)),
        ("nobody that can be named", None, {}, {},
         (f"a process that leaves before it can be named {KEEPS}", LOOK, READ)),
    ),
)  # fmt: skip
def test_the_advice_says_who_keeps_a_device_out(last, users, pods, advice):
    assert tuple(device_status.keeps_out([RepeatedUse(last, 17)], users, pods, "3", "/dev/nvidia3")) == advice


def test_the_advice_points_to_whom_the_fence_has_seen():
    [advice] = device_status.keeps_out([RepeatedUse(None, 17)], {}, {}, "3", "/dev/nvidia3", asked=True)
    assert advice == f"a process that leaves before it can be looked at {KEEPS}: the lines `asked` below name it"


BREAK_IN = f"if nobody knows it, treat it as a break-in: {SAVE}"
HOLD = "`fence: {mode: hold}` in the policy keeps pods off"
OF_NODE = (
    "if it is a person: they acquire the GPU first, with `autoclave acquire 3 --owner NAME`",
    "if it is a daemon that may open GPUs: add its unit to fence.exempt.units",
    "so that it costs no scrubs, and keeps no GPU out: add the path of its program to evict.bystanders",
    "to keep programs of the node off, too: `fence: {mode: refuse}` in the policy",
)


@pytest.mark.parametrize(
    ("places", "who", "advice"),
    lives.rows(
        ("a pod", {"uid-1": "team/a"}, "pod team/a (uid-1)",
         (HOLD, MAY_MONITOR.format("team"),
          "unless that monitor is NVIDIA's, also add team:PATH to evict.bystanders, or it keeps the GPU out")),
        ("a pod without a name", {"uid-1": ""}, "pod uid-1", (HOLD,)),
        ("a unit", {"/system.slice/x.service": ""}, "/system.slice/x.service", OF_NODE),
        ("a process", {"no container": ""}, "a process in no container", OF_NODE),
        ("nobody that can be named", {"": ""}, "a process that had ended before it could be named", OF_NODE),
        ("several", {"container:01": "", "/user.slice": ""}, "container 01, /user.slice", (HOLD, *OF_NODE)),
    ),
)  # fmt: skip
def test_the_advice_after_a_use_fits_who_it_was(places, who, advice):
    at = "2025-06-15 15:06:40 UTC"
    used = f"the GPU was used by {who}, without a grant, last tried at {at}: see `autoclave history 3 --warnings`"
    use = UnauthorisedUse(places, NOW.wall, wiped=False)
    after = partial(device_status.after_use, gpu="3", fence="", mode=FenceMode.OFF)
    assert tuple(after(use, kubelet=False)) == (used, *advice, BREAK_IN)
    assert "autoclave acquire" not in "".join(after(use, kubelet=True))
    assert tuple(after(None, kubelet=False)) == ()
    [wiped] = after(replace(use, wiped=True), kubelet=False)
    assert wiped == f"used without a grant, last tried at {at}, wiped since: see `autoclave history 3 --warnings`"
    [wiped] = after(replace(use, wiped=True, noticed=True), kubelet=False)
    assert wiped == f"used without a grant, noticed at {at}, wiped since: see `autoclave history 3 --warnings`"
    [wiped] = after(replace(use, wiped=True, tenants=("team/a", "job 7")), kubelet=False)
    assert wiped.startswith("used without a grant, at least once while team/a and job 7 had it, last tried at ")


ASK = "but the fence does not keep pods off the GPU now", "`autoclave doctor` says why not"


@pytest.mark.parametrize(
    ("fence", "mode", "pods"),
    [
        ("hold", FenceMode.HOLD, ("the fence keeps pods off the GPU now (mode hold)",)),
        ("refuse", FenceMode.REFUSE, ("the fence keeps pods off the GPU now (mode refuse)",)),
        ("only watch", FenceMode.HOLD, (f"the policy has `fence: {{mode: hold}}`, {ASK[0]}", ASK[1])),
        ("open to all", FenceMode.REFUSE, (f"the policy has `fence: {{mode: refuse}}`, {ASK[0]}", ASK[1])),
        ("watch", FenceMode.WATCH, (HOLD,)),
        ("", FenceMode.OFF, (HOLD,)),
    ],
)
def test_the_advice_on_the_fence_is_for_its_mode(fence, mode, pods):
    places = {"container:01": "", "/user.slice": ""}
    use = UnauthorisedUse(places, NOW.wall, wiped=False)
    _, *advice, _ = device_status.after_use(use, "3", fence, mode, kubelet=False)
    assert tuple(advice) == (*pods, *(OF_NODE[:-1] if mode is FenceMode.REFUSE else OF_NODE))


@pytest.mark.parametrize("grant", [{"group": 9}, {}], ids=["a control group", "pods of a claim"])
def test_no_advice_ends_processes_of_a_named_owner(grant):
    record = live(
        lives.CLEAN, ev.Granted(replace(lives.grant(lives.CLEAN), until_release=True, owner="job 7", **grant))
    )
    if not grant:
        record = live(record, ev.LetIn(("pod-a",)))
    release = "if its owner 'job 7' has ended: `autoclave release 0 --owner 'job 7'`"
    assert device_status.advice(record, holders=[TRAIN]) == (release,)
    advice = device_status.advice(record, holders=[TRAIN, HOST], foreign=FOREIGN_FIRST, others=[HOST])
    assert advice == (*FOREIGN_FIRST, release)


def test_a_foreign_process_is_named_before_other_advice():
    ailing = live(lives.IN_USE, ev.AilmentFound(Ailment(AilmentKind.OPERATOR, "so it is")))
    for record in (lives.IN_USE, lives.CLEAN, ailing):
        advice = device_status.advice(record, holders=[TRAIN, HOST], foreign=FOREIGN_FIRST, others=[HOST])
        assert advice[:1] == FOREIGN_FIRST


def test_the_advice_names_the_owner_that_may_have_ended():
    """Only the caller that acquired the device knows the end of the owner."""
    acquired = live(lives.CLEAN, ev.Granted(replace(lives.grant(lives.CLEAN), owner="job 7")))
    assert device_status.advice(acquired) == ("if its owner 'job 7' has ended: `autoclave release 0 --owner 'job 7'`",)
    assert device_status.advice(acquired, holders=[TRAIN]) == (
        "if its owner 'job 7' has ended, end the processes that it has left behind",
        *END,
        "then give it back: `autoclave release 0 --owner 'job 7'`",
    )
    assert device_status.advice(lives.IN_USE) == ()
    nameless = live(lives.CLEAN, ev.Granted(replace(lives.grant(lives.CLEAN), until_release=True)))
    assert device_status.advice(nameless) == ("if its owner has ended: `autoclave release 0`",)
    forced = ("if its owner has ended: `autoclave release 0 --force`",)
    assert device_status.advice(nameless, owning_pod="ns/train") == forced


def test_the_advice_frees_a_device_whose_owner_was_never_seen():
    awaited = live(lives.GRANTED, ev.PutInUse(Owner("pod-a", NOW)))
    assert device_status.advice(awaited) == (
        "no process of its owner was seen",
        "if the owner has ended: `autoclave release 0`",
    )
    assert device_status.advice(awaited, owning_pod="ns/train/main, ns/train/side")[1:] == (
        "if the pod ns/train is still there, delete it: `kubectl -n ns delete pod train`",
        "if the pod ns/train has ended: `autoclave release 0 --force`",
    )
    assert device_status.advice(awaited, owning_pod="pod-a")[1:] == (
        "if pod-a has ended: `autoclave release 0 --force`",
    )
    assert device_status.advice(awaited, holders=[TRAIN]) == ()


def test_the_advice_is_no_release_that_would_be_refused():
    awaited = live(lives.GRANTED, ev.PutInUse(Owner("pod-a", NOW)))
    facts = lives.facts(())
    starts = (
        "the start of its container was admitted less than 10 s ago, and the container is not there yet",
        "wait 10 s",
    )
    assert device_status.in_the_way(awaited, facts, NOW, as_root=True) == starts
    later = replace(NOW, uptime=NOW.uptime + 10)
    assert device_status.in_the_way(awaited, facts, later, as_root=True) == ()
    assert device_status.advice(awaited, unseen=starts) == starts
    hidden = replace(facts, holders=None, held_up="pid 7 cannot be read")
    why = device_status.in_the_way(awaited, hidden, later, as_root=False)
    root = "let the service run as root"
    assert why == ("pid 7 cannot be read", root, "`autoclave doctor` says what it lacks")
    assert root not in device_status.in_the_way(awaited, hidden, later, as_root=True)
    acquired = live(lives.CLEAN, ev.Granted(replace(lives.grant(lives.CLEAN), owner="job 7")))
    release = "then give it back: `autoclave release 0 --owner 'job 7'`"
    assert device_status.advice(acquired, unseen=why) == (*why, release)


@pytest.mark.parametrize(
    ("holder", "pods", "end"),
    lives.rows(
        ("a process outside pods", TRAIN, {}, END),
        (
            "a pod",
            TRAIN,
            {"pod-a": "ns/a-0"},
            (
                'end the pod of "train" (pid 7): `kubectl -n ns delete pod a-0`',
                "if that pod is gone already: `kill -9 7`",
            ),
        ),
        (
            "a process that waits in the kernel",
            replace(TRAIN, state="D"),
            {},
            HUNG,
        ),
    ),
)
def test_the_advice_ends_who_blocks_a_scrub(holder, pods, end):
    again = "Autoclave tries the scrub again"
    assert device_status.advice(lives.DIRTY, "waiting", holders=[holder], pods=pods) == (*end, again)
    assert device_status.advice(lives.DIRTY, "no CuPy") == ("remove what blocks the scrub: no CuPy", again)
    assert device_status.advice(lives.SET_BACK) == (f"wait: {again}",)
    set_back = replace(lives.SET_BACK, scrubs=replace(lives.SET_BACK.scrubs, stuck=Stuck((holder,), NOW)))
    assert device_status.advice(set_back) == ((*HUNG, again) if holder.state == "D" else (f"wait: {again}",))


def test_the_advice_during_a_probation_is_to_wait():
    tested = live(lives.QUARANTINED, ev.ProbationStarted(lives.job(ScrubPath.RESET), "ann"))
    [wait] = device_status.advice(tested, holders=[TRAIN])
    assert wait == "wait for the end of the probation: `autoclave status GPU-1 --watch` shows its progress"


@pytest.mark.parametrize(
    "record", [lives.CLEAN, lives.IN_USE, lives.SCRUBBING, lives.DIRTY], ids=lambda it: it.state.value
)
def test_a_device_that_needs_no_person_gets_no_advice(record):
    assert device_status.advice(record) == ()
