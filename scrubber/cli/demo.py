"""``autoclave demo``: the whole story on simulated GPUs, each line checked.

The caller's part - the kubelet's, later - is played from here, over the same sockets. Tenants are real processes;
what they can read is read from the memory itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

import click

from scrubber.cli import options
from scrubber.cli.stage import Stage
from scrubber.core import view
from scrubber.devices.simulated import drills, tenants
from scrubber.errors import AutoclaveError, Reason
from scrubber.ledger import audit

T = TypeVar("T")
LEAST_GPUS, MOST_GPUS = 3, 64
TENANT, BAD, KILLED = 0, 1, 2  # which GPU plays which part
BAD_BYTE, BAD_BIT = 12_345_678, 5


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the story: what must hold, and whether it did."""

    act: str
    line: str
    held: bool
    seconds: float
    detail: str


def secret() -> bytes:
    """What a tenant must not find of another's."""
    return b"secret-" + secrets.token_hex(24).encode()


@dataclass
class Play:
    """The running story."""

    stage: Stage
    as_json: bool
    checks: list[Check] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    secret_a: bytes = field(default_factory=secret)
    secret_b: bytes = field(default_factory=secret)
    act: str = ""
    began: float = field(default_factory=time.monotonic)

    def begin(self, act: str) -> None:
        """A new act."""
        self.act = act
        if not self.as_json:
            click.echo(click.style(f"\n{act}", bold=True))

    def check(self, held: bool, line: str, detail: str = "") -> None:
        """Show a line with its verdict, and remember it."""
        seconds = time.monotonic() - self.began
        self.checks.append(Check(self.act, line, held, round(seconds, 3), detail))
        if self.as_json:
            return
        mark = click.style("  ok  ", fg="green") if held else click.style("  NO  ", fg="red", bold=True)
        click.echo(f"{mark} {line}" + (click.style(f"  [{detail}]", dim=True) if detail else ""))

    @property
    def held(self) -> bool:
        """Whether every promise held."""
        return bool(self.checks) and all(check.held for check in self.checks)


@click.command(context_settings=options.ENVIRONMENT)
@click.option(
    "--gpus", type=click.IntRange(LEAST_GPUS, MOST_GPUS), default=LEAST_GPUS, show_default=True, help="How many GPUs."
)
@click.option("--json", "as_json", is_flag=True, envvar="AUTOCLAVE_JSON", help="Print the checks as JSON.")
@click.option("--keep", is_flag=True, help="Leave the directory with the ledger and the log behind.")
def command(gpus: int, as_json: bool, keep: bool) -> int:
    """Show the whole story on simulated GPUs.

    Starts the real service in a temporary directory. Exit code 0 only if every promise held.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does: what was started is ended, too
    return asyncio.run(_show(Play(Stage(gpus), as_json), keep=keep))


async def _show(play: Play, *, keep: bool) -> int:
    try:
        for scene in (_opening, _tenant_a, _hand_over, _bad_memory, _killed, _ledger):
            await scene(play)
    except AutoclaveError as error:
        play.check(False, f"the story goes on: {error.message}", error.reason.value)
    finally:
        for pid in play.pids:
            _end(pid)
        await play.stage.clear_away(keep=keep)
    _close(play, keep=keep)
    return 0 if play.held else 1


async def _opening(play: Play) -> None:
    play.begin("The service starts; nothing is known of the GPUs")
    began = time.monotonic()
    status = await play.stage.start()
    play.check(len(status.devices) == play.stage.gpus, "the service answers", f"after {time.monotonic() - began:.2f} s")
    clean = [await play.stage.settled(gpu, lambda device: device.receipt is not None) for gpu in range(play.stage.gpus)]
    proven = all(device.state == "clean" and device.receipt and _whole(device.receipt) for device in clean)
    play.check(proven, "each GPU is reset, overwritten, read back and found clean before anybody asks for it")


async def _tenant_a(play: Play) -> None:
    play.begin("Tenant A gets GPU 0 and leaves a secret")
    uuid, left = play.stage.uuids[TENANT], play.secret_a
    async with play.stage.scrubber() as service:
        [grant] = await service.acquire([uuid], announced=True)
        await service.start([uuid], "tenant-a")
        pid = await _blocking(tenants.occupy, play.stage.simulated, uuid, left, "tenant-a")
        play.pids.append(pid)
        found = tenants.scan(play.stage.simulated, uuid, left)
        play.check(bool(grant.receipt) and found > 0, "tenant A runs on it and writes a secret", f"pid {pid}")
        reason = await _refused(service.acquire([uuid]))
        untouched = tenants.scan(play.stage.simulated, uuid, left) == found
        play.check(
            reason is Reason.IN_USE and untouched, "tenant B asks for it meanwhile: refused, A's memory is not touched"
        )


async def _hand_over(play: Play) -> None:
    play.begin("Tenant A dies and leaves a zombie; tenant B is next")
    stage, uuid = play.stage, play.stage.uuids[TENANT]
    zombie = await _blocking(tenants.zombie, stage.simulated, uuid, play.secret_a)
    play.pids.append(zombie)
    left = tenants.scan(stage.simulated, uuid, play.secret_a)
    await _blocking(tenants.release, stage.simulated, uuid)
    play.check(
        _runs(zombie) and left > 0, "a process of no container still holds the memory, deaf to SIGTERM", f"pid {zombie}"
    )
    async with stage.scrubber() as service, stage.admin() as admin:
        began = time.monotonic()
        [grant] = await service.acquire([uuid], announced=True)
        seconds = time.monotonic() - began
        story = [entry.text for entry in (await admin.explain("0")).entries]
        receipt = (await stage.settled(TENANT, lambda device: device.receipt is not None)).receipt
        ended = any(f"ended pid {zombie}" in text for text in story)
        play.check(ended and not _runs(zombie), "the hand-over finds the zombie and ends it", "TERM, a pause, KILL")
        ladder = [step.step for step in receipt.steps] if receipt else []
        play.check(ladder == ["evict", "clear", "verify", "settings", "health"], "the ladder runs", " > ".join(ladder))
        residue = receipt.residue_bytes if receipt else 0
        play.check(residue > 0, "what A left is found and counted", f"{residue} bytes that were not zero")
        proven = receipt is not None and _whole(receipt) and grant.receipt == receipt.id
        play.check(
            proven, "the memory is proven clean and handed to tenant B", f"receipt {grant.receipt}, {seconds:.2f} s"
        )
        await service.start([uuid], "tenant-b")
        found = tenants.scan(stage.simulated, uuid, play.secret_a)
        play.check(found == 0 and _zero(stage.memory_of(TENANT)), "tenant B reads all of it and finds nothing")
        play.pids.append(await _blocking(tenants.occupy, stage.simulated, uuid, play.secret_b, "tenant-b"))


async def _bad_memory(play: Play) -> None:
    play.begin("GPU 1 has memory that does not hold a bit")
    stage, uuid = play.stage, play.stage.uuids[BAD]
    drills.bad_memory(stage.simulated, uuid, BAD_BYTE, BAD_BIT)
    async with stage.admin() as admin, stage.scrubber() as service:
        results = [progress.result async for progress in admin.scrub([uuid]) if progress.result]
        play.check(not results[-1].clean, "a scrub says that it is not clean")
        story = " | ".join(entry.text for entry in (await admin.explain(uuid)).entries)
        play.check(f"at byte {BAD_BYTE} " in story, "the byte is named", f"byte {BAD_BYTE}, bit {BAD_BIT}")
        play.check("escalated to the slow path" in story, "the slow path is tried as well: a reset does not mend it")
        device = (await admin.status([uuid])).devices[0]
        sick = device.quarantine is not None and device.quarantine.reason == "memory-fault"
        play.check(sick and not device.healthy, "the GPU is quarantined, and explained", device.why)
        play.check(await _refused(service.acquire([uuid])) is Reason.QUARANTINED, "nobody gets it")


async def _killed(play: Play) -> None:
    play.begin("The service is killed with SIGKILL in the middle of a clear")
    stage, uuid, left = play.stage, play.stage.uuids[KILLED], secret()
    async with stage.scrubber() as service:
        await service.acquire([uuid], announced=True)
        await service.start([uuid], "tenant-c")
        await _blocking(tenants.occupy, stage.simulated, uuid, left, "tenant-c")
        all_of_it = tenants.scan(stage.simulated, uuid, left)
        drills.stall_clears(stage.simulated, uuid)
        await _blocking(tenants.release, stage.simulated, uuid)
        await service.release([uuid])
    busy = await stage.settled(KILLED, _halfway)
    cut = busy.job.id if busy.job else ""
    await stage.kill()
    remains = tenants.scan(stage.simulated, uuid, left)
    play.check(
        bool(cut) and 0 < remains < all_of_it,
        "part of tenant C's memory is overwritten, part is not; now the service is gone",
        f"job {cut}",
    )
    drills.heal(stage.simulated, uuid)
    await stage.start()
    async with stage.admin() as admin:
        device = await stage.settled(KILLED, lambda device: device.receipt is not None)
        texts = [entry.text for entry in await admin.history(uuid)]
        interrupted = any("cut off, nothing was proven" in text for text in texts)
        receipts = [json.loads(entry.body) for entry in await admin.history(uuid) if entry.kind == "scrub-passed"]
        honest = interrupted and all(receipt["job"] != cut for receipt in receipts)
        play.check(honest, "after the restart the job that was cut off counts for nothing")
        play.check(device.state == "clean", "GPU 2 is scrubbed again, from the start, and then clean")
        async with stage.scrubber() as service:
            await service.acquire([uuid], announced=True)
            await service.start([uuid], "tenant-d")
        play.check(tenants.scan(stage.simulated, uuid, left) == 0, "tenant D gets it and finds nothing of C's")
        others = (await admin.status()).devices
        alive = tenants.scan(stage.simulated, stage.uuids[TENANT], play.secret_b) > 0
        play.check(others[TENANT].state == "exposed" and alive, "tenant B's memory was not touched by all this")
        play.check(others[BAD].state == "quarantined", "GPU 1 is still quarantined: a restart brings nothing back")


async def _ledger(play: Play) -> None:
    play.begin("The ledger")
    status = await play.stage.stop()
    result = audit.verify(play.stage.ledger)
    play.check(status == 0 and result.broken is None, "the chain is whole", f"{result.rows} rows")
    forged = play.stage.root / "forged"
    shutil.copytree(
        play.stage.ledger.parent, forged, ignore=lambda _, names: [name for name in names if "lock" in name]
    )
    row = _forge(forged / play.stage.ledger.name)
    broken = audit.verify(forged / play.stage.ledger.name).broken
    play.check(broken is not None and broken.seq == row, "one changed byte in a copy is found and named", f"row {row}")


def _forge(path: Path) -> int:
    """Change one character of the newest proof: what somebody with something to hide would do."""
    with closing(sqlite3.connect(path)) as database, database:
        [(row, body)] = database.execute(
            "SELECT seq, body FROM entries WHERE kind = 'scrub-passed' ORDER BY seq DESC LIMIT 1"
        )
        at = body.index('"residue_bytes":') + len('"residue_bytes":')
        forged = body[:at] + ("8" if body[at] == "9" else "9") + body[at + 1 :]
        database.execute("UPDATE entries SET body = ? WHERE seq = ?", (forged, row))
    return int(row)


async def _refused(call: Awaitable[object]) -> Reason | None:
    """Why not, or None if it was a yes."""
    try:
        await call
    except AutoclaveError as error:
        return error.reason
    return None


async def _blocking(work: Callable[..., T], *arguments: object) -> T:
    return await asyncio.to_thread(work, *arguments)


def _halfway(device: view.DeviceStatus) -> bool:
    """Whether the clear has counted what is there and is in the middle of its first write."""
    return device.job is not None and device.job.step == "clear" and device.job.done_bytes > device.memory_bytes


def _whole(receipt: view.ReceiptView) -> bool:
    return 0 < receipt.covered_bytes == receipt.allocatable_bytes


def _zero(memory: Path) -> bool:
    data = memory.read_bytes()
    return data.count(0) == len(data) > 0


def _runs(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _end(pid: int) -> None:
    """End a tenant of ours, if it still is one: a number alone names nobody."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if b"scrubber.devices.simulated.tenant" in Path(f"/proc/{pid}/cmdline").read_bytes():
            signal.pidfd_send_signal(process, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        return
    finally:
        os.close(process)


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
