"""The plan of one node: each program is named by what a policy can exempt, with what each mode does to it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from autoclave.cli import NOT_CLEAN, service_call
from autoclave.cli.output import fence_plan
from autoclave.cli.output.fence_plan import Planned, Program
from autoclave.cli.verbs.fence import fence as verb
from scrub_api import views
from tests.cli.statuses import CLEAN, NOW, SERVICE

OPENER = views.OpenerView("nvtop", 9, "/system.slice/telegraf.service", "", 0.0, NOW, times=4, refused=0)
DAYS = 3 * 86_400.0
SHARED = "control groups of version 1"


def asked(*openers: views.OpenerView, fence: str = "watch") -> views.DeviceStatus:
    return replace(CLEAN, fence=fence, openers=openers)


def plan_of(*devices: views.DeviceStatus, service: views.ServiceStatus = SERVICE) -> list[Planned]:
    """The plan of a node whose service says this; all programs have ended."""
    return fence_plan.planned(views.Status(devices, service), lambda _opener: Program())


@pytest.mark.parametrize(
    ("place", "pod", "exempt", "expected"),
    [
        ("/system.slice/telegraf.service", "", False, ("unit", "telegraf.service", "counted", "refused")),
        ("/user.slice/user-0.slice/session-3.scope", "", False, ("unit", "user.slice", "counted", "refused")),
        ("/a group/of mine", "", False, ("unit", "/a\\x20group/of\\x20mine", "counted", "refused")),
        ("/system.slice/telegraf.service", "", True, ("unit", "telegraf.service", "exempt", "exempt")),
        ("0a-uid", "site/dcgm-x7", False, ("namespace", "site", "refused", "refused")),
        ("0a-uid", "site/dcgm-x7", True, ("namespace", "site", "exempt", "exempt")),
        ("0a-uid", "", False, ("pod", "0a-uid", "refused", "refused")),
        ("/kubepods.slice/kubepods-besteffort.slice", "", False, ("pod", "-", "refused", "refused")),
        ("/kubelet.slice/kubelet-kubepods.slice", "", False, ("pod", "-", "refused", "refused")),
        ("/kubepods/besteffort", "", False, ("pod", "-", "refused", "refused")),
        ("/k3s/kubepods", "", False, ("pod", "-", "refused", "refused")),
        ("/system.slice/kubepods.service", "", False, ("unit", "kubepods.service", "counted", "refused")),
        ("container:ab12", "", False, ("container", "container:ab12", "counted", "refused")),
        ("no container", "", False, ("host", "-", "counted", "refused")),
        ("", "", False, ("unknown", "-", "unknown", "refused")),
    ],
)
def test_each_place_has_its_name_and_what_modes_do(
    place: str, pod: str, exempt: bool, expected: tuple[str, ...]  # noqa: FBT001 - a parameter
) -> None:  # fmt: skip
    [row] = plan_of(asked(replace(OPENER, place=place, pod=pod, exempt=exempt)))
    assert (row.kind, row.name, row.hold, row.refuse) == expected


@pytest.mark.parametrize(
    ("place", "pod", "exempt", "does"),
    [
        ("/system.slice/telegraf.service", "", False, ("bystander", "refused")),
        ("/system.slice/telegraf.service", "", True, ("bystander", "bystander")),
        ("0a-uid", "site/dcgm-x7", False, ("refused", "refused")),
        ("0a-uid", "site/dcgm-x7", True, ("bystander", "bystander")),
    ],
)
def test_a_bystander_that_is_let_in_is_shown(
    place: str, pod: str, exempt: bool, does: tuple[str, ...]  # noqa: FBT001 - a parameter
) -> None:  # fmt: skip
    """It may keep a GPU open, and costs no scrub."""
    rows = plan_of(asked(replace(OPENER, place=place, pod=pod, exempt=exempt, ignored=True)))
    assert [(row.hold, row.refuse) for row in rows] == [does]
    assert fence_plan.advice(rows) == []


@pytest.mark.parametrize(
    ("before", "since", "hold"),
    [
        ({"exempt": True}, {"exempt": True, "ignored": True}, "bystander"),
        ({"exempt": True}, {"exempt": True, "ignored": True, "last": NOW - 31.0}, "exempt"),
        ({"exempt": True, "last": NOW}, {"exempt": True, "ignored": True}, "exempt"),
        ({"exempt": False}, {"ignored": True}, "counted"),
    ],
    ids=["it is a bystander by now", "it has not asked since", "it has, and did not count", "it is not exempt"],
)
def test_a_row_says_what_modes_do_now(before: dict[str, Any], since: dict[str, Any], hold: str) -> None:
    openers = replace(OPENER, **{"last": NOW - 60.0, **before}), replace(OPENER, **since)
    [row] = plan_of(asked(*openers), service=replace(SERVICE, policy_since=NOW - 30.0))
    assert (row.hold, row.asked) == (hold, 8)


@pytest.mark.parametrize("last", [None, NOW - 60.0], ids=["it was not counted", "before the policy in force"])
def test_an_exempt_program_that_holds_a_gpu_is_shown(last: float | None) -> None:
    """It keeps the GPU out, also if it has asked for nothing since."""
    holder = views.HolderView(9, "", "nvtop", "", exempt=True, place=OPENER.place)
    openers = () if last is None else (replace(OPENER, exempt=True, last=last),)
    device = replace(asked(*openers), holders=(holder, replace(holder, command="train", exempt=False)))
    [row] = rows = plan_of(device, service=replace(SERVICE, policy_since=NOW - 30.0))
    assert (row.kind, row.name, row.gpus, row.hold, row.refuse) == ("unit", "telegraf.service", 1, "exempt", "exempt")
    assert (row.asked, len(fence_plan.advice(rows))) == (0 if last is None else 4, 1)


def test_pods_of_a_namespace_are_one_row_over_all_gpus() -> None:
    """If one of them is not exempt, such as by the policy of one GPU, the row is not."""
    one, other = (replace(OPENER, place=uid, pod=f"site/{uid}", refused=2) for uid in "ab")
    second = replace(asked(replace(other, exempt=True)), device="GPU-second")
    rows = plan_of(asked(one), second, asked(OPENER))
    assert rows == [
        Planned("namespace", "site", "nvtop", "", gpus=2, asked=8, refused=4, hold="refused", refuse="refused"),
        Planned("unit", "telegraf.service", "nvtop", "", gpus=1, asked=4, refused=0, hold="counted", refuse="refused"),
    ]


def test_a_row_stays_one_line_whatever_a_program_is_called() -> None:
    [row] = plan_of(asked(replace(OPENER, command="a\nnamespace x \x1b[2J")))
    assert row.program == r"a\nnamespace x \x1b[2J"


def test_a_program_that_still_runs_is_shown_with_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()  # its name in /proc is set only after the call that starts it has returned
        runs, another = replace(OPENER, command="cat", pid=process.pid), replace(OPENER, pid=process.pid)
        status = views.Status((asked(runs, another),), replace(SERVICE, started=NOW - DAYS))
        monkeypatch.setattr(service_call, "ask", lambda _run_dir, _question: status)
        monkeypatch.setattr("time.time", lambda: NOW)
        table, document = (CliRunner().invoke(verb, ["plan", "-o", form]).stdout for form in ("table", "json"))
    path = os.path.realpath(shutil.which("cat") or "")
    assert [row.partition("refused  ")[2] for row in table.splitlines()[1:]] == [f"cat {path}", "nvtop"]
    assert [row["path"] for row in json.loads(document)["items"]] == [path, ""]


NVTOP = Program("/usr/bin/nvtop")
IN_SESSION = replace(OPENER, place="/user.slice/user-0.slice/session-3.scope")


@pytest.mark.parametrize(
    ("opener", "program", "who", "advice"),
    [
        (OPENER, NVTOP, "unit telegraf.service", "add /usr/bin/nvtop to evict.bystanders"),
        (replace(OPENER, place="ab", pod="site/a"), NVTOP, "namespace site", "add site:/usr/bin/nvtop to evict"),
        (replace(OPENER, place="ab"), NVTOP, "pod ab",
         "add NAMESPACE:/usr/bin/nvtop to evict.bystanders; if it is there already, this node cannot tell"),
        (replace(OPENER, place="ab", pod="site/a"), Program(), "namespace site",
         "add site:PATH to evict.bystanders; if it is there already, it may have ended before the service could look"),
        (OPENER, Program(), "unit telegraf.service", "add PATH to evict.bystanders"),
        (OPENER, Program("/usr/bin/nvtop", "of PrivateTmp="), "unit telegraf.service", "runs now: of PrivateTmp="),
        (OPENER, Program("/usr/bin/bash"), "unit telegraf.service", "do not list /usr/bin/bash, which would let in"),
        (OPENER, Program("/usr/bin/python3.11"), "unit telegraf.service", "do not list /usr/bin/python3.11"),
        (replace(OPENER, place="ab", pod="site/a"), Program("/bin/sh"), "namespace site", "add site:/bin/sh to evict"),
        (IN_SESSION, Program("/usr/bin/dd"), "unit user.slice", "in a session: end it when nobody needs it"),
    ],
    ids=[
        "of the host", "of a pod", "of a pod without a name", "it has ended in its pod", "it has ended",
        "it cannot be one", "of bash",
        "of Python", "of a script in a pod", "of somebody",
    ],
)  # fmt: skip
def test_the_plan_says_that_an_exemption_is_not_enough(
    monkeypatch: pytest.MonkeyPatch, opener: views.OpenerView, program: Program, who: str, advice: str
) -> None:
    """A monitor that keeps GPUs open takes all of them out of service, unless it is a bystander."""
    status = views.Status((asked(replace(opener, exempt=True), replace(OPENER, command="sh")),), SERVICE)
    monkeypatch.setattr(service_call, "ask", lambda _run_dir, _question: status)
    monkeypatch.setattr("autoclave.cli.verbs.fence._look", lambda _opener: program)
    monkeypatch.setattr("time.time", lambda: NOW + DAYS)
    said = CliRunner().invoke(verb, ["plan"]).stderr
    assert said.startswith(
        f"autoclave: nvtop ({who}) is exempt, but did not count as a bystander: each opening ends the proof of a clean "
        "GPU, and nobody else gets a GPU while the program keeps it open; "
    )
    assert (advice in said, said.count("\n")) == (True, 1), said


@pytest.mark.parametrize(
    ("opener", "advised"),
    [
        (OPENER, True),
        (replace(OPENER, last=NOW - 60.0), False),
        (replace(OPENER, ignored=True), False),
    ],
    ids=["since", "before", "it is a bystander"],
)
def test_only_attempts_under_the_policy_in_force_need_advice(opener: views.OpenerView, *, advised: bool) -> None:
    """Or else nobody sees for 7 days whether the last change was enough."""
    rows = plan_of(asked(replace(opener, exempt=True)), service=replace(SERVICE, policy_since=NOW - 30.0))
    assert (len(rows), bool(fence_plan.advice(rows))) == (1, advised)


def test_a_plan_repeats_what_flags_exempt() -> None:
    """The values of a chart are replaced as a whole: what is missing in the plan would be lost."""
    device = asked(replace(OPENER, place="ab", pod="site/a", exempt=True))
    flags = replace(SERVICE, exempt_namespaces=("site", "nvidia-gpu"), exempt_units=("crio-*.scope",))
    rows = plan_of(device, service=flags)
    assert [(row.kind, row.name, row.program, row.asked, row.hold, row.refuse) for row in rows] == [
        ("namespace", "site", "nvtop", 4, "exempt", "exempt"),
        ("namespace", "nvidia-gpu", "-", 0, "exempt", "exempt"),
        ("unit", "crio-*.scope", "-", 0, "exempt", "exempt"),
    ]


@pytest.mark.parametrize(
    ("fences", "lacks", "up", "said", "code"),
    [
        (("watch", "watch"), "", DAYS, "", 0),
        (("watch", "watch"), "", 60.0, "counts for less than a day", 0),
        (("watch", ""), "", DAYS, "no fence counts who opens 1 GPU, so", 0),
        (
            ("", ""),
            "no bpf",
            DAYS,
            "no fence counts who opens 2 GPUs, so whoever uses it is missing: no bpf",
            NOT_CLEAN,
        ),
        (("watch", "watch"), SHARED, DAYS, "`hold` and `refuse` keep nobody off here", 0),
        (("", ""), "", 60.0, "no fence counts who opens 2 GPUs, so", NOT_CLEAN),
        ((), "", DAYS, "the service lists no GPU", NOT_CLEAN),
    ],
)
def test_whom_a_plan_may_miss_is_said(
    monkeypatch: pytest.MonkeyPatch, fences: tuple[str, ...], lacks: str, up: float, said: str, code: int
) -> None:
    devices = tuple(asked(OPENER, fence=fence) for fence in fences)
    shared = lacks == SHARED
    service = replace(SERVICE, fence_lacks="" if shared else lacks, started=NOW - up, pods_share_groups=shared)
    status = views.Status(devices, service)
    monkeypatch.setattr(service_call, "ask", lambda _run_dir, _question: status)
    monkeypatch.setattr("time.time", lambda: NOW)
    answer = CliRunner().invoke(verb, ["plan", "-o", "json"], standalone_mode=False)
    assert (answer.return_value, len(answer.stderr.splitlines())) == (code, bool(said))
    assert (said in answer.stderr, said in " ".join(json.loads(answer.stdout)["gaps"])) == (True, True)
