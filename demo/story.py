"""The story of ``make demo``: each line is checked on simulated GPUs.

The chain is the real one: a kubelet (the stand-in, with the real one's faults), the device plugin or the DRA driver,
and the scrub service as processes of their own, containers as real processes. What they can read is read from the
memory itself.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import click

from demo import containers, groups
from demo.installation import PAUSE, ByPlugin, Installation
from demo.stage import ANSWERS_WITHIN, Stage, halfway, run
from demo.standins.pods import Pod
from ground.errors import AutoclaveError, Reason, Refused
from scrub_api import views
from scrubber.devices.simulated import drills
from scrubber.ledger import reading
from scrubber.receipts import key
from scrubber.receipts.tenant_files import ENVELOPE

T = TypeVar("T")
LEAST_GPUS, MOST_GPUS = 3, 64
TENANT, BAD, KILLED = 0, 1, 2  # which GPU plays which part
BAD_BYTE, BAD_BIT = 12_345_678, 5
HOLD, WATCH = "hold", "watch"  # what the fence does with pods


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the demo: a promise, and whether it held."""

    act: str
    line: str
    held: bool
    seconds: float
    detail: str


@dataclass
class Play:
    """The running demo and its checks."""

    stage: Stage
    as_json: bool
    checks: list[Check] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    pods: dict[str, Pod] = field(default_factory=dict)
    act: str = ""
    began: float = field(default_factory=time.monotonic)

    def begin(self, act: str) -> None:
        """Start a new act."""
        self.act = act
        if not self.as_json:
            click.echo(click.style(f"\n{act}", bold=True))

    def check(self, held: bool, line: str, detail: str = "") -> None:
        """Print a line with its result, and keep it."""
        seconds = time.monotonic() - self.began
        self.checks.append(Check(self.act, line, held, round(seconds, 3), detail))
        if self.as_json:
            return
        mark = click.style("  ok  ", fg="green") if held else click.style("  NO  ", fg="red", bold=True)
        click.echo(f"{mark} {line}" + (click.style(f"  [{detail}]", dim=True) if detail else ""))

    def pod(self, name: str, gpus: int) -> Pod:
        """A new pod that requests this number of GPUs."""
        self.pods[name] = self.stage.installation.pod(name, gpus)
        return self.pods[name]

    def secret_of(self, pod: str) -> bytes:
        """The data that no other pod may find."""
        return containers.mark(self.pods[pod].uid).encode()

    def gpus_of(self, pod: str) -> tuple[str, ...]:
        """The GPUs of a pod."""
        return self.stage.installation.gpus_of(self.pods[pod])

    def data_of(self, pod: str, gpu: int) -> int:
        """How often the data of a pod is in the memory of a GPU."""
        return drills.scan(self.stage.simulated, self.stage.uuids[gpu], self.secret_of(pod))

    def check_gpu(self, pod: str, gpu: int, detail: str = "") -> None:
        """Check which GPU a pod got, and what was in its memory before its first container ran."""
        self.check(self.gpus_of(pod) == (self.stage.uuids[gpu],), f"pod {pod.upper()} gets GPU {gpu}", detail)
        assert isinstance(self.stage.containers, containers.ReadingRunner)  # noqa: S101 - narrows the type
        dirty = self.stage.containers.found[self.pods[pod].uid]
        self.check(dirty == 0, f"pod {pod.upper()} finds only zeros", f"{dirty} other bytes" if dirty else "")

    @property
    def held(self) -> bool:
        """Whether every promise held."""
        return bool(self.checks) and all(check.held for check in self.checks)


def show(gpus: int, installed_as: type[Installation], *, as_json: bool, keep: bool) -> int:
    """Run the demo. The exit code says whether every promise held."""
    root = Path(tempfile.mkdtemp(prefix="autoclave-"))
    # The fence holds nobody, but in its act: so Allocate refuses whoever plays the story, as an ordinary user has none.
    policy = _write_policy(root, WATCH)
    runs = containers.ReadingRunner
    stage = Stage(gpus, policy=str(policy), root=root, installed_as=installed_as, runs=runs)
    return run(_show(Play(stage, as_json), keep=keep))


def _write_policy(root: Path, mode: str) -> Path:
    """The policy of the story, with this mode of the fence. The service reads it again after each change."""
    written, policy = root / "policy.new", root / "policy.yaml"
    written.write_text(f"name: demo\ndefaults: {{receipts: mount, fence: {{mode: {mode}}}}}\n")
    return written.replace(policy)


async def _show(play: Play, *, keep: bool) -> int:
    try:
        for scene in (_opening, _pod_a, _hand_over, _bad_memory, _killed, _not_given, _restarts, _ledger):
            await scene(play)
    except (AutoclaveError, TimeoutError) as error:
        play.check(False, f"the demo runs to its end: {error!r}")
    finally:
        for pid in play.pids:
            drills.kill(pid)
        await play.stage.clear_away(keep=keep)
    _close(play, keep=keep)
    return 0 if play.held else 1


async def _opening(play: Play) -> None:
    play.begin("The scrub service starts with GPUs of unknown state")
    stage, began = play.stage, time.monotonic()
    status = await stage.start()
    play.check(len(status.devices) == stage.gpus, "the service answers", f"after {time.monotonic() - began:.2f} s")
    clean = [await stage.settled(gpu, lambda device: device.receipt is not None) for gpu in range(stage.gpus)]
    proven = all(device.state == "clean" and device.receipt and _whole(device.receipt) for device in clean)
    play.check(proven, "each GPU is reset, overwritten, read back and found clean before any pod asks for it")
    receipts = [device.receipt for device in clean if device.receipt is not None]
    units = {(receipt.units_reached, receipt.units) for receipt in receipts}
    deep = len(receipts) == stage.gpus and all(0 < (of or 0) == reached for reached, of in units)
    detail = ", ".join(f"{reached} of {of} units" for reached, of in units)
    play.check(deep, "the memory on the chip of each GPU is overwritten and read back", detail)
    tested = len(receipts) == stage.gpus and all(receipt.tests for receipt in receipts)
    play.check(tested, "each GPU passes a self-test", ", ".join(receipts[0].tests) if tested else "")
    began = time.monotonic()
    await stage.start_node()
    for uuid in stage.uuids:
        await stage.installation.until_offered(uuid)
    play.check(True, f"{stage.installation.name} offers the GPUs to pods", f"after {time.monotonic() - began:.2f} s")


async def _pod_a(play: Play) -> None:
    play.begin("Pod A gets GPU 0 and writes a secret; pod A is force-deleted while its container still runs")
    stage, uuid = play.stage, play.stage.uuids[TENANT]
    await _run(play, "a", 1)
    await _run(play, "neighbour", stage.gpus - 1)
    play.check(play.gpus_of("a") == (uuid,), "pod A runs on GPU 0")
    left = play.data_of("a", TENANT)
    play.check(left > 0, "pod A has written a secret")
    await stage.kubelet.force_delete(play.pods["a"])
    async for held, line, detail in stage.installation.early(play.pod("b", 1), uuid):
        play.check(held, line, detail)
    play.check(play.data_of("a", TENANT) == left, "pod A's memory is unchanged")


async def _hand_over(play: Play) -> None:
    play.begin("Pod A's container ends and leaves a process behind; pod B gets GPU 0 next")
    stage, uuid = play.stage, play.stage.uuids[TENANT]
    leftover = await _blocking(stage.occupy, uuid)
    play.pids.append(leftover)
    first = (await stage.settled(TENANT, lambda _: True)).receipt
    ending = asyncio.create_task(_ended(stage.kubelet.end_orphan, play.pods["a"]))
    play.check(_runs(leftover), "a leftover process holds the memory and ignores SIGTERM", f"pid {leftover}")
    began = time.monotonic()
    receipt = (await stage.settled(TENANT, lambda device: device.receipt not in (None, first))).receipt
    seconds = time.monotonic() - began
    async with stage.admin() as admin:
        rows = [json.loads(entry.body) for entry in await admin.history(uuid) if entry.kind == "steps-recorded"]
    reports = [result["findings"] or {} for row in rows for result in row["results"]]
    ended = any(leftover in findings.get("terminated", ()) for findings in reports)
    play.check(ended and not _runs(leftover), "the service finds and ends the leftover process", "TERM, a pause, KILL")
    ladder = [step.step for step in receipt.steps] if receipt else []
    play.check(
        ladder == ["evict", "clear", "verify", "scratch", "settings", "health"],
        "the steps of the fast path run",
        " > ".join(ladder),
    )
    # In the history, because a scrub that fails after its clear leaves nothing to find for the next one.
    residue = sum(findings.get("residue_bytes", 0) for findings in reports)
    play.check(residue > 0, "the data that pod A left is found and counted", f"{residue} bytes that were not zero")
    proven = receipt is not None and _whole(receipt)
    play.check(proven, "the whole memory is proven clean before the next pod", f"{seconds:.2f} s")
    await ending
    await stage.installation.until_offered(uuid)
    play.pods["b"] = await stage.installation.later(play.pods["b"])
    call = [call for call in stage.kubelet.calls if call.method == stage.installation.call][-1]
    play.check_gpu("b", TENANT, f"{call.method} took {call.seconds * 1000:.1f} ms")
    if isinstance(stage.installation, ByPlugin):  # the containers of a claim find no receipt
        async with stage.admin() as admin:
            await _blocking(_verify, play, uuid, await admin.history(uuid))


def _verify(play: Play, uuid: str, history: Sequence[views.HistoryEntry]) -> None:
    """Verify the receipt as pod B can: with one command and the node's public key."""
    if not key.can_sign():
        play.check(True, "receipts are not signed: the package cryptography is not installed")
        return
    stage = play.stage
    folders = stage.containers.receipts[play.pods["b"].uid]
    there = [len(files) for files in folders.values()] == [2]
    play.check(there, "pod B finds a signed receipt before its container runs")
    if not there:
        return
    [folder] = folders
    trusted = stage.root / "node.pem"
    trusted.write_text(key.public_pem(key.read_key(stage.ledger.parent).public_key))
    for gpu, right in ((uuid, True), (stage.uuids[BAD], False)):
        verb = (sys.executable, "-m", "autoclave", "receipt", "verify")
        command = [*verb, str(folder), "--key", str(trusted), "--gpu", gpu]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        line = "pod B verifies it with the node's public key" if right else "for another GPU it is refused"
        said = run.stdout.partition("\nclaim")[2].lstrip() if right else run.stderr
        code = 6 if right else 1  # 6: it is good, and claims nothing, because the GPU is simulated
        play.check(run.returncode == code and bool(said), line, said.partition("\n")[0])
    predicate = json.loads(base64.b64decode(json.loads((folder / ENVELOPE).read_text())["payload"]))["predicate"]
    rows = [json.loads(entry.body)["receipt"] for entry in history if entry.kind == "scrub-passed"]
    recorded = [row["residue_bytes"] for row in rows if row["id"] == predicate["receipt"]["id"]]
    left = predicate["found"]["residueBytes"]
    play.check([left] == recorded, "it says what the scrub found, as the ledger does", f"{left} bytes of residue")
    gone = not any(folder.exists() for folder in stage.containers.receipts[play.pods["a"].uid])
    play.check(gone, "the receipt of pod A is gone")


async def _bad_memory(play: Play) -> None:
    play.begin("GPU 1 has a stuck memory bit")
    stage, uuid = play.stage, play.stage.uuids[BAD]
    await stage.kubelet.delete(play.pods["neighbour"])
    for gpu in range(1, stage.gpus):
        await stage.settled(gpu, lambda device: device.state == "clean")
    drills.bad_memory(stage.simulated, uuid, BAD_BYTE, BAD_BIT)
    async with stage.admin() as admin:
        results = [progress.result async for progress in admin.scrub([uuid]) if progress.result]
        play.check(not results[-1].clean, "a scrub ends not clean")
        story = " | ".join(entry.text for entry in (await admin.explain(uuid)).entries)
        play.check(f"at byte {BAD_BYTE} " in story, "the result names the byte", f"byte {BAD_BYTE}, bit {BAD_BIT}")
        play.check("escalated to the reset path" in story, "a reset is tried too: it does not repair the bit")
        device = (await admin.status([uuid])).devices[0]
    sick = device.quarantine is not None and device.quarantine.reason == "memory-fault"
    play.check(sick and not device.healthy, "GPU 1 is quarantined, with the reason", device.why)
    await stage.installation.until_offered(uuid, offered=False)
    offered, there = stage.installation.offered(), len(stage.installation.offers())
    play.check((offered, there) == (stage.gpus - 1, stage.gpus), stage.installation.quarantined)


async def _killed(play: Play) -> None:
    play.begin("The scrub service is killed with SIGKILL in the middle of a clear")
    stage, uuid = play.stage, play.stage.uuids[KILLED]
    await _run(play, "c", 1)
    all_of_it = play.data_of("c", KILLED)
    drills.stall_clears(stage.simulated, uuid)
    ending = asyncio.create_task(_ended(stage.kubelet.delete, play.pods["c"]))
    busy = await stage.settled(KILLED, halfway)
    cut = busy.job.id if busy.job else ""
    await stage.service.end(signal.SIGKILL)
    remains = play.data_of("c", KILLED)
    partly = "the service is killed while a part of pod C's memory is overwritten"
    play.check(bool(cut) and 0 < remains < all_of_it, partly, f"job {cut}")
    refusal = await stage.installation.refused(play.pod("early", 1))
    play.check(bool(refusal), "a pod that asks meanwhile gets no GPU", refusal)
    play.check(stage.installation.offered() == 0, "no GPU is offered while the service is down")
    drills.heal(stage.simulated, uuid)
    await stage.start()
    device = await stage.settled(KILLED, lambda device: device.receipt is not None or device.quarantine is not None)
    async with stage.admin() as admin:
        history = await admin.history(uuid)
        others = (await admin.status()).devices
    interrupted = any("cancelled, nothing was proven" in entry.text for entry in history)
    receipts = [json.loads(entry.body) for entry in history if entry.kind == "scrub-passed"]
    honest = interrupted and all(receipt["job"] != cut for receipt in receipts)
    play.check(honest, "after the restart the interrupted job proves nothing")
    play.check(device.state == "clean", "GPU 2 is scrubbed again from the start, and ends clean")
    play.check(others[TENANT].state == "in_use", "GPU 0 is still in use after the restart", others[TENANT].state)
    play.check(play.data_of("b", TENANT) > 0, "pod B's memory is unchanged")
    play.check(others[BAD].state == "quarantined", "GPU 1 is still quarantined after the restart")
    if device.quarantine is not None:
        raise Refused(Reason.NOT_READY, f"GPU 2 is not offered again: {device.why}")
    await ending
    await stage.installation.until_offered(uuid)
    await _run(play, "d", 1)
    play.check_gpu("d", KILLED)


async def _not_given(play: Play) -> None:
    play.begin("A pod opens a GPU that it was not given")
    stage, top, uid = play.stage, play.stage.groups, str(uuid4())
    lacks = groups.why_none() if top is None else await _no_fence(stage)
    if top is None or lacks:
        play.check(True, f"no fence can stand here, so nothing keeps it off: {lacks}")
        return
    _write_policy(stage.root, HOLD)
    await stage.settled(TENANT, lambda device: device.fence == HOLD)
    said = await stage.read(TENANT, uid)
    play.check(
        "Operation not permitted" in said,
        "the kernel refuses it pod B's GPU, although it is root",
        said or "it read it",
    )
    device = await stage.settled(TENANT, lambda device: bool(_refused(device, uid)))
    play.check(bool(_refused(device, uid)), "the service names the program that asked", _refused(device, uid))
    groups.remove_pod(top, uid)
    play.check(device.state == "in_use" and play.data_of("b", TENANT) > 0, "pod B keeps its GPU and its memory")
    _write_policy(stage.root, WATCH)
    await stage.settled(TENANT, lambda device: device.fence == WATCH)


async def _no_fence(stage: Stage) -> str:
    """Why no fence stands although this user can make control groups; empty: one does."""
    async with stage.admin() as admin:
        status = await admin.status()
    if all(device.fence for device in status.devices):
        return ""
    return status.service.fence_lacks or "this machine has no loop device for the memory of a simulated GPU"


def _refused(device: views.DeviceStatus, pod: str) -> str:
    """The program of this pod to which the kernel has refused the device."""
    return ", ".join(str(opener) for opener in device.openers if opener.place == pod and opener.refused)


async def _restarts(play: Play) -> None:
    play.begin(f"The kubelet and {play.stage.installation.name} are killed and restarted")
    stage = play.stage
    await stage.kubelet.kill()
    began = time.monotonic()
    await stage.kubelet.start()
    await stage.installation.registered(ANSWERS_WITHIN)
    play.check(
        True,
        f"{stage.installation.short} registers with the new kubelet",
        f"after {(time.monotonic() - began) * 1000:.0f} ms",
    )
    await stage.kubelet.exit_container(play.pods["b"], "main")
    await stage.installation.started(play.pods["b"])
    play.check(True, "pod B's container restarts")
    play.check(play.data_of("b", TENANT) > 0, "pod B's memory is unchanged")
    await stage.plugin.end(signal.SIGKILL)
    await stage.installation.gone()  # otherwise the registration of the killed program would count
    await stage.plugin.start()
    await stage.installation.registered(ANSWERS_WITHIN)
    play.check(not stage.installation.offers()[stage.uuids[BAD]], stage.installation.still_quarantined)
    async for held, line in stage.installation.restarts(stage.uuids[BAD]):
        play.check(held, line)
    for name in ("b", "d"):
        await _ended(stage.kubelet.delete, play.pods[name])


async def _ledger(play: Play) -> None:
    play.begin("The ledger")
    plugin = await play.stage.plugin.end(signal.SIGTERM)
    status = await play.stage.service.end(signal.SIGTERM)
    result = reading.verify(play.stage.ledger)
    detail = "" if (plugin, status) == (0, 0) else f"exit status {plugin} and {status}"
    play.check(not detail, f"{play.stage.installation.short} and the service stop cleanly", detail)
    play.check(result.broken is None, "no row of the ledger was changed", f"{result.rows} rows")
    forged = play.stage.root / "forged"
    shutil.copytree(
        play.stage.ledger.parent, forged, ignore=lambda _, names: [name for name in names if "lock" in name]
    )
    row = _forge(forged / play.stage.ledger.name)
    broken = reading.verify(forged / play.stage.ledger.name).broken
    play.check(
        broken is not None and broken.seq == row, "a changed byte in a copy is found, with its row", f"row {row}"
    )


def _forge(path: Path) -> int:
    """Change one character of the newest receipt, as an attacker would."""
    with closing(sqlite3.connect(path)) as database, database:
        [(row, body)] = database.execute(
            "SELECT seq, body FROM entries WHERE kind = 'scrub-passed' ORDER BY seq DESC LIMIT 1"
        )
        at = body.index('"residue_bytes":') + len('"residue_bytes":')
        forged = body[:at] + ("8" if body[at] == "9" else "9") + body[at + 1 :]
        database.execute("UPDATE entries SET body = ? WHERE seq = ?", (forged, row))
    return int(row)


async def _run(play: Play, name: str, gpus: int) -> None:
    """Run a pod until its container runs; any other result ends the demo."""
    play.pods[name] = await play.stage.installation.run(play.pod(name, gpus))


async def _ended(end: Callable[[Pod], Awaitable[bool]], pod: Pod) -> None:
    """End a pod. The kubelet tries again until it has ended."""
    while not await end(pod):  # noqa: ASYNC110 - each try is a call of the driver
        await asyncio.sleep(PAUSE)


async def _blocking(work: Callable[..., T], *arguments: object) -> T:
    return await asyncio.to_thread(work, *arguments)


def _whole(receipt: views.ReceiptView) -> bool:
    return 0 < receipt.covered_bytes == receipt.allocatable_bytes


def _runs(pid: int) -> bool:
    """Whether a process runs; a zombie that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _close(play: Play, *, keep: bool) -> None:
    if play.as_json:
        document = {
            "apiVersion": "autoclave/v1",
            "kind": "DemoReport",
            "passed": play.held,
            "checks": [asdict(check) for check in play.checks],
        }
        click.echo(json.dumps(document, indent=2))
        return
    broken = sum(not check.held for check in play.checks)
    seconds = time.monotonic() - play.began
    if broken:
        click.echo(f"\n{broken} of {len(play.checks)} promises were broken.", err=True)
    else:
        click.echo(f"\nAll {len(play.checks)} promises held, in {seconds:.1f} s.")
    if keep:
        click.echo(f"Left behind: {play.stage.root}", err=True)
