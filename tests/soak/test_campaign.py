"""A slice of the campaign, and what shows that its attackers attack and that its judge sees what they do."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import nullcontext, suppress

import pytest

from demo.installation import RESOURCE
from demo.standins.journal import Call
from demo.standins.kubelet import Kubelet
from demo.standins.pods import Pod
from demo.standins.runtime import CannotCreate
from plugin.kubelet_api import deviceplugin_pb2
from scrubber.devices.simulated import layout, loops, open_check
from tests.move_table import ATTACKS, FAULTS
from tests.patience import WITHIN
from tests.soak.campaign import Summary, campaign, until
from tests.soak.hostile import FOREIGN, LEFTOVER, Entry, Hostile, Use, uptime
from tests.soak.judge import DROPPED, LATE, Judge
from tests.soak.moves import BEFORE_CLEAR, BEFORE_ITS_CLEAR, HOLDING, MANNERS, WIPES
from tests.soak.planted import CARELESS, OPEN, REFUSES, ROOT, WATCHES, WIPES_SEED
from tests.soak.pods import SHAPES

pytestmark = pytest.mark.night

ANSWER = deviceplugin_pb2.ContainerAllocateResponse()
SEEDS = (1, 2, 3, 4)  # about two minutes
LONG = 600.0  # seconds; a net, no bound
MINUTES = float(os.environ.get("SOAK_MINUTES", "10"))
# A campaign that does nothing finds nothing. So many a minute at least: a third of what two busy cores do.
AT_LEAST = {"starts": 40, "hand-overs from pod to pod": 20}
EACH_AFTER = 10.0  # minutes after which each move and each attacker must have come
DID = (
    *("ends: finished", "ends: deleted", "ends: force-deleted", "never started"),
    *("crashes", "killed containers", "left a process behind"),
    *(f"killed during {hook}" for hook in ("Allocate", "PreStartContainer")),
    *(f"pods, {shape}" for shape in SHAPES),
    *(f"in a clear, it {manner}" for manner in MANNERS),
    BEFORE_CLEAR,
)


@pytest.mark.timeout(60 * MINUTES + 1800)
def test_the_campaign_finds_nothing(request, capsys):
    """The night plays four histories, ``make soak`` those of SOAK_MINUTES, from SOAK_SEED on."""
    summary, began, soak = Summary(), time.monotonic(), request.config.getoption("--soak")
    seed = int(os.environ.get("SOAK_SEED") or secrets.randbelow(10**6))
    with capsys.disabled() if soak else nullcontext():  # for the person who waits
        campaign(until(began + 60 * MINUTES, seed) if soak else SEEDS, summary)
    assert summary.findings == [], "\n".join(summary.findings)
    minutes = (time.monotonic() - began) / 60
    assert missing(summary, minutes) == []


ROOMS = (
    "autoclave", "access", "remnant", "containers", "scrubber", "plugin", "scrub_api", "policies", "ground", "demo",
    "tests",
)  # fmt: skip


def test_a_short_history_about_wipes_finds_nothing():
    summary = Summary()
    campaign((WIPES_SEED,), summary, about="wipes")
    assert summary.findings == [], "\n".join(summary.findings)
    assert summary.moves == Counter(WIPES)
    assert summary.pods[BEFORE_CLEAR] == WIPES["before_clear"]


@pytest.mark.parametrize("seed", [WATCHES, REFUSES])
def test_a_short_history_about_the_fence_finds_nothing(seed):
    summary = Summary()
    campaign((seed,), summary, about="asks")
    assert summary.findings == [], "\n".join(summary.findings)
    if summary.counts["nodes with a fence"]:
        assert summary.counts["kept off a GPU by the kernel" if seed == REFUSES else "uses with a fence"] > 0
        assert summary.pods[BEFORE_ITS_CLEAR] == 1


def findings_of(tmp_path, planted):
    """The findings of a history of a copy in which something is wrong, and all that it prints."""
    for room in ROOMS:
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("*.pyc.*"))
    (tmp_path / "build").symlink_to(ROOT / "build")  # what is compiled already
    (tmp_path / planted.file).write_text(planted.text())
    words = ("--only", str(planted.seed), "--about", planted.about)
    command = [sys.executable, "-m", "tests.soak.campaign", *words]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LONG, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FINDING")]
    return lines, done.stdout + done.stderr


@pytest.mark.parametrize("how", CARELESS)
def test_a_scrub_that_overwrites_memory_in_use_is_found(tmp_path, how):
    lines, said = findings_of(tmp_path, CARELESS[how])
    assert {line.split()[3] for line in lines} == {CARELESS[how].finding}, said


@pytest.mark.parametrize("how", OPEN)
def test_a_fence_that_is_open_or_forgets_is_found(tmp_path, how):
    if os.geteuid() != 0 or not loops.can_attach(2**20):
        pytest.skip("takes root, and loop devices")
    lines, said = findings_of(tmp_path, OPEN[how])
    assert any(OPEN[how].finding in line for line in lines), said


def missing(summary, minutes):
    """The names of what came too seldom, each with its count and its minimum."""
    came = {**summary.counts, **summary.moves, **summary.attackers, **summary.pods}
    wanted = {name: int(least * minutes) for name, least in AT_LEAST.items()}
    if minutes >= EACH_AFTER:
        wanted |= dict.fromkeys((*ATTACKS, *FAULTS, *HOLDING, "comes_and_goes", "grows", *DID), 1)
    seldom = {name: came.get(name, 0) for name, least in wanted.items() if came.get(name, 0) < least}
    return [f"{name}: {count}, at least {wanted[name]}" for name, count in seldom.items()]


@pytest.fixture
async def runtime(tmp_path):
    """One GPU without a service: nobody scrubs it."""
    layout.create(tmp_path / "gpus", 1, 2**18)
    it = Hostile(tmp_path / "gpus")
    yield it
    await it.clear_away()


@pytest.fixture
def judge(runtime, tmp_path):
    return Judge(runtime, Kubelet(tmp_path, runtime))


@pytest.fixture
def gpu(runtime):
    return layout.places(runtime.simulated)[0]


@pytest.mark.parametrize("manner", [*HOLDING, "grows"])
async def test_each_attacker_keeps_the_memory_until_it_is_ended(runtime, gpu, manner):
    attacker = await runtime.attack(FOREIGN, gpu.info().uuid, manner, "writes")
    attacker.begin()
    held = {open_check.is_open([str(gpu.memory)]) for _ in range(100)}
    assert (held, attacker.lives()) == ({True}, True)
    await attacker.end()
    assert not attacker.lives()


@pytest.fixture
def comes(runtime, judge, gpu):
    """The first container of a new pod starts, if it finds its memory clean."""

    async def come(name) -> Pod:
        pod = Pod.of(name, {RESOURCE: 1})
        await runtime.open_sandbox(pod)
        judge.kubelet.calls.append(Call("PreStartContainer", RESOURCE, outcome="OK"))
        with suppress(CannotCreate):
            await runtime.start(pod, pod.containers[0], {RESOURCE: (gpu.info().uuid,)}, ANSWER)
        return pod

    return come


def clear(gpu, *, chip=True):
    gpu.memory.write_bytes(bytes(gpu.memory.stat().st_size))
    if chip:
        gpu.chip.write_bytes(bytes(gpu.chip.stat().st_size))


def findings(judge):
    judge.look()
    return [it.partition(":")[0] for it in judge.findings]


async def test_bytes_of_another_pod_are_a_leak(runtime, judge, comes):
    first = await comes("first")
    await runtime.stop(first, first.containers[0])
    await comes("second")
    assert findings(judge) == ["leak"]
    assert "<[first]>" in judge.findings[0]


async def test_memory_that_is_overwritten_in_use_is_a_wipe(runtime, judge, gpu, comes):
    pod = await comes("pod")
    clear(gpu)
    await runtime.stop(pod, pod.containers[0])
    assert findings(judge) == ["wipe"]


@pytest.mark.parametrize(("asked", "put_back"), [(False, True), (True, True), (False, False)])
async def test_only_an_unasked_start_after_a_rollback_excuses_a_wipe(runtime, judge, gpu, comes, asked, put_back):
    pod, judge.put_back = await comes("pod"), put_back
    if not asked:
        judge.kubelet.calls.clear()
    clear(gpu)
    await runtime.stop(pod, pod.containers[0])
    assert findings(judge) == ([] if put_back and not asked else ["wipe"])


async def test_a_rollback_excuses_no_wipe_under_a_noticed_process(runtime, judge, gpu, comes):
    pod, judge.put_back = await comes("pod"), True
    judge.kubelet.calls.clear()
    judge.noticed.add(pod.uid)
    clear(gpu)
    await runtime.stop(pod, pod.containers[0])
    assert findings(judge) == ["wipe"]


async def test_a_start_beside_another_pods_leftover_is_a_finding(runtime, judge, gpu, comes):
    first = await comes("first")
    attacker = await runtime.attack(LEFTOVER, gpu.info().uuid, "registers", "silent", first.uid)
    await runtime.stop(first, first.containers[0])
    clear(gpu)
    assert attacker.lives()
    await comes("second")
    assert findings(judge) == ["second starts beside registers, silent"]


async def test_a_tenant_ended_by_another_program_is_a_finding(runtime, judge, comes):
    pod = await comes("pod")
    runtime._running[pod.uid, "main"][0].kill()
    await runtime._running[pod.uid, "main"][0].wait()
    await runtime.stop(pod, pod.containers[0])
    assert findings(judge) == ["a live process was ended"]


@pytest.mark.parametrize("to_all", [False, True])
async def test_a_use_that_the_fence_should_refuse_is_a_finding(runtime, judge, gpu, to_all):
    judge.refuses = True
    runtime.uses.append(Use("somebody", gpu.info().uuid, uptime(), to_all))
    assert findings(judge) == ([] if to_all else [f"somebody opens {gpu.info().uuid}, which refuses others"])


@pytest.mark.parametrize("proven", [False, True])
async def test_a_start_on_a_proof_before_a_use_is_found(runtime, judge, gpu, proven):
    pod, uuid, now = Pod.of("pod", {RESOURCE: 1}), gpu.info().uuid, uptime()
    judge.claimed.add(pod.uid)
    runtime.uses.append(Use("somebody", uuid, now - 2, open_to_all=False))
    runtime.entries.append(Entry(pod, uuid, now, now - 1 if proven else now - 3))
    assert findings(judge) == ([] if proven else [f"pod starts on {uuid} by a proof from before its use"])


async def looked(judge, until):
    """Return as soon as the judge has seen it."""
    async with asyncio.timeout(WITHIN):
        while not until():
            await asyncio.sleep(0.01)
            judge.look()


async def test_an_attacker_that_sees_a_pod_is_a_leak(runtime, judge, gpu, comes):
    attacker = await runtime.attack(FOREIGN, gpu.info().uuid, "maps", "reads")
    await comes("pod")
    attacker.begin()
    await looked(judge, lambda: "leak" in findings(judge))


async def test_residue_written_after_the_last_poll_is_an_exception(runtime, judge, gpu, comes):
    pod = await comes("pod")
    attacker = await runtime.attack(FOREIGN, gpu.info().uuid, "holds", "writes")
    attacker.begin()
    await looked(judge, lambda: judge.excused[LATE])
    await runtime.stop(pod, pod.containers[0])
    assert findings(judge) == []


@pytest.mark.parametrize("third", [False, True])
async def test_bytes_of_a_pod_that_the_kubelet_dropped_are_residue(runtime, judge, gpu, comes, third):
    """Unless a third pod has had the GPU since."""
    dropped = Pod.of("dropped", {RESOURCE: 1})
    await runtime.open_sandbox(dropped)
    judge.late[dropped.uid] = {gpu.info().uuid: 0}
    if third:
        between = await comes("third")
        await runtime.stop(between, between.containers[0])
        clear(gpu)
    await comes("next")
    await runtime.late(dropped, [gpu.info().uuid], 0)
    assert (findings(judge), judge.excused[DROPPED]) == (([], 1) if third else (["leak"], 0))
    await runtime.close_sandbox(dropped)
