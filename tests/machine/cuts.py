"""``make machine ARGS=--cuts``: the power is cut while the service writes its ledger.

The directory of the service is on a disk of its own, under dm-log-writes: the kernel of the machine logs each write and
flush of that disk to another one. The log up to some place is what the disk was told when the power went. Of the writes
after the last flush, each block is lost or not, by chance, as in a disk with a cache. So one life of the service gives
many cuts. An answer of the service writes a mark into the log, before it leaves the machine. The last cut is real: the
machine is killed, and its disk is judged as it is then.

The judge is outside: it knows which answers had come by then, repairs the file system as a boot would, and starts the
service on what is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from ground import paths
from ground.errors import AutoclaveError, FatalError
from scrub_api.admin_client import AdminClient
from scrub_api.client import ScrubberClient
from scrubber.ledger import reading
from tests.machine import building, vm
from tests.machine.progress import say
from tests.trace import FOUND, MOVE, ROW, Event, Trace

LIVES = 3
GPUS = 4
OF_EACH_KIND = 3  # cuts in each life
WRITES_FOR = 60.0  # seconds of a life after its first answer, about
STARTS_WITHIN = 300.0
BLOCK = 4096
_DISK_BYTES, _LOG_BYTES = 96 << 20, 4 << 30  # what is not written takes no space
KILLED = 1 << 62  # later than each place of the log
MOVE_OF = {"granted": "claim", "released": "claim", "quarantined": "quarantine", "reinstated": "quarantine"}
CUT = "power_cut"
_FLUSH, _FUA, _DISCARD, _MARK = 1, 2, 4, 8  # in the log
_GPUS, _STATE, _UNIT = "/run/autoclave/gpus", "/var/lib/autoclave", "autoclave-scrubber"
_IMAGE, _JUDGED = building.FOLDER / "cut.img", building.FOLDER / "judged"
_LEFT = _JUDGED / "state"


# Each line of a program leaves the machine after its mark: "writer-1", "writer-2" ...
_MARKED = """n=0; {command} | while read -r line; do n=$((n + 1))
dmsetup message {life} 0 mark "{kind}-$n"; printf '%s\\n' "$line"; done"""


class Life:
    """What is known outside about one life of the service, which begins on an empty disk."""

    def __init__(self, number: int, folder: Path) -> None:
        self.name = f"state{number}"
        self.first, self.disk, self.log, self.gpus = (
            folder / f"{self.name}.{kind}" for kind in ("first", "img", "log", "gpus")
        )
        self.lines = {"writer": bytearray(), "journal": bytearray()}
        with self.first.open("wb") as disk:
            disk.truncate(_DISK_BYTES)
        with self.log.open("wb") as log:
            log.truncate(_LOG_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-L", self.name, self.first], check=True)
        shutil.copy(self.first, self.disk)

    def close(self) -> None:
        """The machine has ended: find in the log when each answer had come."""
        marks = {entry.mark: entry.end for entry in entries(self.log) if entry.mark}
        self.began, self.answered = marks["began"], marks["writer-1"]

        def of(kind: str) -> list[tuple[int, str]]:
            whole = self.lines[kind].decode().splitlines(keepends=True)
            named = ((f"{kind}-{number}", line) for number, line in enumerate(whole, 1) if line.endswith("\n"))
            return [(marks.get(name, KILLED), line) for name, line in named]  # the kill may be before the mark

        self.answers = [(place, json.loads(line)) for place, line in of("writer")]
        self.checkpoints = [(place, line) for place, line in of("journal") if '"checkpoint"' in line]


@dataclass(frozen=True, slots=True)
class Entry:
    """One write or mark in the log of dm-log-writes."""

    end: int  # of the entry in the log, in bytes
    flags: int
    at: int  # on the disk, in bytes
    content: bytes
    mark: str


def entries(log: Path) -> Iterator[Entry]:
    """What the disk was told, in order."""
    with log.open("rb") as file:
        sector = struct.unpack("<QQQI", file.read(28))[-1]
        end = sector
        while True:
            file.seek(end)
            start, sectors, flags, size = struct.unpack("<QQQQ", file.read(32))
            if (start, sectors, flags, size) == (0, 0, 0, 0):
                return
            mark = file.read(size).decode() if flags & _MARK else ""
            end += sector
            content = b""
            if not flags & (_DISCARD | _MARK):
                file.seek(end)
                content = file.read(sectors * sector)
                end += len(content)
            yield Entry(end, flags, start * sector, content, mark)


def campaign(arguments: Sequence[str]) -> list[int]:
    """An exit code for each cut: 0 if the judge has found nothing. The argument is the seed."""
    seed = arguments[0] if arguments else str(time.time_ns() % 10**6)
    say(f"the seed is {seed}")
    chance = random.Random(seed)  # noqa: S311 - to be repeated
    with tempfile.TemporaryDirectory(prefix="cuts-", dir=building.FOLDER) as folder:
        lives = [Life(number, Path(folder)) for number in range(LIVES)]
        with vm.booted(disks=[disk for life in lives for disk in (life.disk, life.log)]) as machine:
            machine.bring_checkout()
            machine.install(GPUS)
            machine.run(
                f"systemctl stop {_UNIT}; modprobe dm-log-writes;"
                f"printf 'AUTOCLAVE_SIMULATED_%s\\n' DIR={_GPUS} MEMORY=1MiB >> /etc/autoclave/scrubber.env"
            )
            for number, life in enumerate(lives):
                say(f"{life.name}: the first start, and {WRITES_FOR:g} s of writing")
                disks = [f"/dev/ubd{vm.DISKS[2 * number + each]}" for each in range(2)]
                _live(machine, life, disks, chance.uniform(0.8, 1.2) * WRITES_FOR, killed=life is lives[-1])
        for life in lives:
            life.close()
        codes = [_judge(life, place, name, chance) for life in lives for name, place in _places(life, chance)]
        return [*codes, _judge(lives[-1], KILLED, "the machine killed", chance)]


def _live(machine: vm.Machine, life: Life, disks: Sequence[str], seconds: float, *, killed: bool) -> None:
    data, log = disks
    machine.run(
        f"systemctl kill -s KILL {_UNIT} 2>/dev/null; systemctl stop {_UNIT}; umount {_STATE} 2>/dev/null;"
        f"rm -rf /run/autoclave; sed -i /autoclave/d /etc/fstab; mkdir -p {_STATE};"
        f'dmsetup create {life.name} --table "0 {_DISK_BYTES // 512} log-writes {data} {log}";'
        f"echo /dev/mapper/{life.name} {_STATE} ext4 defaults 0 2 >> /etc/fstab; systemctl daemon-reload;"
        f"mount {_STATE}; sync; dmsetup message {life.name} 0 mark began"
    )
    since = machine.output("date +%s").strip()
    commands = {
        "writer": f"cd /tmp && /opt/autoclave/bin/python {building.INSIDE}/tests/machine/writer.py {life.name}",
        "journal": f"journalctl -q -f -n all -o cat -u {_UNIT} --since @{since}",
    }
    come = threading.Event()

    def listen(kind: str) -> None:
        def take(stream: str, content: bytes) -> None:
            if stream == "out":
                life.lines[kind] += content
            if kind == "writer":
                come.set()

        with suppress(building.NoMachineError):  # it ends with the machine
            machine.listen(_MARKED.format(command=commands[kind], life=life.name, kind=kind), take)

    for kind in commands:
        threading.Thread(target=listen, args=[kind], daemon=True).start()
    machine.run(f"systemctl start {_UNIT}")
    if not come.wait(STARTS_WITHIN):
        raise building.NoMachineError("the service has given no answer")
    machine.run(f"tar -C {_GPUS} --exclude=service.lock -c -f /host/{life.gpus.name} .")
    shutil.copy(machine.folder / life.gpus.name, life.gpus)
    time.sleep(seconds)
    if killed:
        machine.cut_power()
    else:
        machine.run("pkill -f '[p]ython.*/writer.py'; pkill journalctl")


def _places(life: Life, chance: random.Random) -> list[tuple[str, int]]:
    """Where the log is cut: in the first start, when an answer has just come, and anywhere."""
    answers = [size for size, _ in life.answers if size > life.answered]
    return [
        *(("first start", chance.randint(life.began, life.answered)) for _ in range(OF_EACH_KIND)),
        *(("after an answer", chance.choice(answers)) for _ in range(OF_EACH_KIND)),
        *(("anywhere", chance.randint(life.answered, answers[-1])) for _ in range(OF_EACH_KIND)),
    ]


def cut(life: Life, place: int, chance: random.Random) -> tuple[int, int]:
    """Write the disk as it may be if the power goes then. How many blocks were lost, and of how many."""
    if place == KILLED:
        shutil.copy(life.disk, _IMAGE)
        return 0, 0
    shutil.copy(life.first, _IMAGE)
    waiting: list[tuple[int, bytes]] = []
    with _IMAGE.open("r+b") as disk:

        def write(blocks: list[tuple[int, bytes]]) -> None:
            for at, block in blocks:
                disk.seek(at)
                disk.write(block)

        for entry in takewhile(lambda entry: entry.end <= place, entries(life.log)):
            if entry.flags & _FLUSH:
                write(waiting)
                waiting = []
            content = entry.content
            blocks = [(entry.at + each, content[each : each + BLOCK]) for each in range(0, len(content), BLOCK)]
            if entry.flags & _FUA:
                write(blocks)
            else:
                waiting += blocks
        share = chance.choice((0.0, 0.5, 1.0))
        kept = [each for each in waiting if chance.random() < share]
        write(kept)
    return len(waiting) - len(kept), len(waiting)


def _judge(life: Life, place: int, name: str, chance: random.Random) -> int:
    lost, unflushed = cut(life, place, chance)
    shutil.rmtree(_JUDGED, ignore_errors=True)
    _LEFT.mkdir(mode=0o700, parents=True)
    repaired = subprocess.run(["e2fsck", "-fy", _IMAGE], capture_output=True, check=False).returncode
    faults = [f"e2fsck ends with {repaired}"] if repaired > 1 else []
    subprocess.run(["debugfs", "-R", f"rdump / {_LEFT}", _IMAGE], capture_output=True, check=True)
    _LEFT.chmod(0o700)
    shutil.rmtree(_LEFT / "lost+found")
    answers = [answer for size, answer in life.answers if size <= place]
    rows = _rows()
    if len(rows) < (acknowledged := max((answer.get("rows", 0) for answer in answers), default=0)):
        faults.append(f"{acknowledged - len(rows)} acknowledged rows are lost")
    there = [(row["kind"], row["device"], json.dumps(row["body"])) for row in rows]
    quarantined = set[str]()
    for answer in answers:
        kind, device, body = (answer.get(word, "") for word in ("kind", "device", "body"))
        if kind and not any((kind, device) == (row[0], row[1]) and body in row[2] for row in there):
            faults.append(f"no row {answer}")
        if kind == "quarantined":
            quarantined.add(device)
        quarantined.discard(answer.get("reinstating", ""))
    checkpoints = _JUDGED / "checkpoints"
    checkpoints.write_text("".join(line for size, line in life.checkpoints if size <= place))
    if rows:
        faults += _said("ledger", "verify", *(["--checkpoint", str(checkpoints)] if checkpoints.stat().st_size else []))
    faults += _served(life, rows, quarantined)
    where = "" if place == KILLED else f", {place} bytes"
    say(
        f"{life.name}, {name}{where}: {lost} of {unflushed} unflushed blocks lost; {len(answers)} answers, "
        f"{acknowledged} rows acknowledged, {len(rows)} found: {'; '.join(faults) or 'nothing wrong'}"
    )
    if faults:
        (_JUDGED / "story").write_text(story(life, place, rows, faults))
        shutil.copytree(_JUDGED, building.FOLDER / f"faulty-{life.name}-{place}", dirs_exist_ok=True)
    return int(bool(faults))


def story(life: Life, place: int, rows: Sequence[dict[str, Any]], faults: Sequence[str]) -> str:
    """The answers that had come until the cut, and the rows that are left. The clock is the size of the log."""
    trace = Trace(lambda: place)
    for size, answer in life.answers:
        if size <= place and "kind" in answer:
            words = f"{MOVE_OF[answer['kind']]}: {answer['kind']} {answer.get('body', '')}"
            trace.events.append(Event(size, MOVE, words, answer["device"]))
    trace.say(MOVE, f"{CUT}: {place} bytes of the log had been written")
    for row in rows:
        trace.say(ROW, f"{row['kind']} {row['body']}", row["device"])
    for fault in faults:
        trace.say(FOUND, fault)
    return trace.story()


def _served(life: Life, before: list[dict[str, Any]], quarantined: set[str]) -> Iterator[str]:
    """What is wrong after a start of the service on what is left."""
    (_JUDGED / "gpus").mkdir(mode=0o700)
    subprocess.run(["tar", "-x", "-f", life.gpus, "-C", _JUDGED / "gpus"], check=True)
    flags = ("--backend", "simulated", "--simulated-gpus", "4", "--simulated-memory", "4MiB")
    with (
        (_JUDGED / "service.log").open("wb") as log,
        subprocess.Popen([*_CLI, "scrubber", *flags], cwd=building.ROOT, env=_environment(), stderr=log) as service,
    ):
        try:
            yield from asyncio.run(_asked(quarantined))
        finally:
            service.terminate()
            service.wait()
    if before and any(_LEFT.glob("*.corrupt-*")):
        yield "the ledger was set aside"
    after = _rows()
    if before != after[: len(before)]:
        yield "earlier rows have changed"
    proven = Counter[str]()
    for row in after[len(before) :]:
        proven[row["device"]] += row["kind"] == "scrub-passed"
        if row["kind"] == "granted" and not proven[row["device"]]:
            yield f"a proof from before the cut was believed: row {row['seq']}"
    if (broken := reading.verify(_LEFT / "ledger.db").broken) is not None:
        yield broken.why
    key = _JUDGED / "key.pub"
    key.write_text(_run("receipt", "key").stdout)
    for folder in [path.parent for path in (_LEFT / "receipts").glob("*/receipt.tlog-proof")][-1:]:
        yield from _said("receipt", "verify", str(folder), "--key", str(key), good=(0, 6))  # 6: of a simulated GPU


async def _asked(quarantined: set[str]) -> list[str]:
    """What is wrong with the answers of the service when it is asked for all GPUs at once."""
    run = _JUDGED / "run"
    async with ScrubberClient(paths.scrubber_socket(run)) as scrubber, AdminClient(paths.admin_socket(run)) as admin:
        if not await admin.reachable(STARTS_WITHIN):
            return ["the service does not start"]
        devices = (await admin.status(timeout=STARTS_WITHIN)).devices
        free = [each.device for each in devices if each.state != "quarantined"]
        try:
            await scrubber.acquire(free, exclusive=True, owner="judge", timeout=STARTS_WITHIN)
        except AutoclaveError:  # they are not clean yet
            async for _ in admin.scrub(free):
                pass
            await scrubber.acquire(free, exclusive=True, owner="judge", timeout=STARTS_WITHIN)
    return [f"no longer quarantined: {device}" for device in quarantined & set(free)]


_CLI = (str(building.ROOT / ".venv/bin/python"), "-P", "-m", "autoclave")


def _environment() -> dict[str, str]:
    places = {"STATE_DIR": _LEFT, "RUN_DIR": _JUDGED / "run", "SIMULATED_DIR": _JUDGED / "gpus"}
    none = dict.fromkeys(("KUBELET_DIR", "POD_LOGS_DIR"), _JUDGED / "none")
    return os.environ | {f"AUTOCLAVE_{name}": str(path) for name, path in (places | none).items()}


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_CLI, *arguments], cwd=building.ROOT, env=_environment(), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, check=False, timeout=120,
    )  # fmt: skip


def _said(*arguments: str, good: tuple[int, ...] = (0,)) -> list[str]:
    """What a command says that fails."""
    done = _run(*arguments)
    return [] if done.returncode in good else [f"{' '.join(arguments[:2])}: {done.stderr.strip()}"]


def _rows() -> list[dict[str, Any]]:
    try:
        return list(reading.export(_LEFT / "ledger.db"))
    except (AutoclaveError, FatalError):  # the first start was not far enough
        return []
