"""Reads, exports and verifies a ledger, for a program that is not its writer: a service may write to it meanwhile.

To verify it is to check whether each row is as it was written, and whether one was lost or moved.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ground import private_files
from ground.errors import FatalError, joined
from ground.quantities import quantity
from scrubber.core import events, states
from scrubber.core.model import DeviceInfo
from scrubber.core.record import Record
from scrubber.ledger import compaction, database, entry_queries, ledger_rows, tree
from scrubber.ledger.compaction import Batch, Fold, Snapshot
from scrubber.ledger.entry_queries import EVERYTHING, HistoryPage, Kept, Window
from scrubber.ledger.ledger_files import LedgerPaths, read_head
from scrubber.ledger.ledger_rows import CorruptLedgerError, Mark
from scrubber.ledger.sqlite_errors import translated
from scrubber.receipts import dsse
from scrubber.receipts.key import ReceiptError
from scrubber.receipts.merkle import Head, Inclusion
from scrubber.receipts.note import Checkpoint, log_name
from scrubber.receipts.row_documents import Documents

_DESCRIBES = frozenset(ledger_rows.KINDS[event] for event in (events.Discovered, events.Described))
LOST = "keep these files: the next start of the service sets them aside, and then knows no quarantine and no owner"


@dataclass(frozen=True, slots=True)
class LedgerFile:
    """A ledger that was verified, as it is on the disk, and the devices after its newest row."""

    path: Path
    records: Mapping[str, Record]
    kept: Kept
    version: int  # of its format: that of the program that has written its newest row

    async def history(
        self, device: str | None, since: float | None, limit: int, window: Window = EVERYTHING
    ) -> HistoryPage:
        """The newest entries of the window, of one device or of all, newest last."""
        with consistent_view(LedgerPaths(self.path)) as connection:
            return HistoryPage(entry_queries.newest_entries(connection, device, since, limit, window))

    def signed_by(self) -> str:
        """The id of the key that signs its receipts, as its newest note says; empty without a note."""
        with consistent_view(LedgerPaths(self.path)) as connection:
            note = next(database.notes(connection, ledger_rows.KEY), None)
            return str(json.loads(note)["key"]) if note is not None else ""

    def set_aside_before(self) -> str:
        """The name of the damaged ledger after which this one began; empty if there was none."""
        with consistent_view(LedgerPaths(self.path)) as connection:
            *_, first = "{}", *database.notes(connection, ledger_rows.BEGUN)  # a later one was planted
            with suppress(ValueError, LookupError, TypeError, RecursionError):  # not set aside, or changed
                return str(json.loads(first)["set_aside"])
            return ""

    def prove(self, seq: int, size: int) -> tuple[Inclusion, str]:
        """That a row is in the tree of the first ``size`` rows; and the row's hash."""
        with consistent_view(LedgerPaths(self.path)) as connection:
            candidates = (*database.evidence(connection, seq, seq), *database.rows(connection, seq, seq))
            if not candidates or not seq <= size <= database.tree_of(connection).size:
                raise FatalError(
                    f"cannot prove that row {seq} is among the first {quantity(size, 'row')} of the ledger {self.path}:"
                    " it does not have these rows",
                    "`autoclave ledger verify` checks it",
                )
            return tree.include(connection, seq, size), candidates[0].hash


def read(path: Path) -> LedgerFile:
    """Read a ledger; LedgerUnavailable if it is damaged or cannot be read, FatalError if there is none."""
    paths = LedgerPaths(path)
    noted = noted_head(paths)
    with consistent_view(paths) as connection:
        database.check_version(connection, path)
        records = database.load(connection, noted, states.replay).records
        by_uuid = {record.device.uuid: record for record in records}
        return LedgerFile(path, by_uuid, entry_queries.kept(connection), database.version(connection))


def export(path: Path) -> Iterator[dict[str, object]]:
    """The evidence, the snapshot, and each row as it is stored, ready for JSON; of any version.

    A body that is not JSON stays text.
    """
    with consistent_view(LedgerPaths(path)) as connection:
        yield from _exported(connection, "evidence")
        for snapshot in _exported(connection, "snapshot"):
            yield {"kind": "snapshot", **snapshot}
        yield from _exported(connection, "entries")


def _exported(connection: sqlite3.Connection, table: str) -> Iterator[dict[str, object]]:
    cursor = connection.execute(f"SELECT * FROM {table} ORDER BY 1")  # noqa: S608 - our own words
    names = [name for name, *_ in cursor.description]
    for columns in cursor:
        yield {name: _plain(name, value) for name, value in zip(names, columns, strict=True)}


def _plain(name: str, value: object) -> object:
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    if not isinstance(text, str) or name not in {"body", "records"}:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def noted_head(paths: LedgerPaths) -> Head | None:
    """The head in its file. It is read before the rows: a writer may add rows meanwhile, so they may be ahead of it."""
    with translated("read the ledger", paths.database):
        paths.check(private_files.demand_regular)
        return read_head(paths.head)


@contextmanager
def consistent_view(paths: LedgerPaths) -> Iterator[sqlite3.Connection]:
    """A connection in one consistent view, for a program that is not the writer."""
    with translated("read the ledger", paths.database):
        paths.check_not_lost(LOST)
        if not paths.database.exists():
            why = f"cannot read the ledger {paths.database}: there is no such file"
            raise FatalError(why, "name the state directory of the node, such as /var/lib/autoclave")
        paths.check(private_files.demand_regular)
        connection = _connect_to_read(paths)
        try:
            with database.transaction(connection, "BEGIN"):
                yield connection
        finally:
            connection.close()


def _connect_to_read(paths: LedgerPaths) -> sqlite3.Connection:
    connection = database.connect(paths.database, "mode=ro")
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except sqlite3.OperationalError:
        # SQLite cannot create the index of the log in a read-only directory. Without a log it needs no index.
        connection.close()
        if paths.wal.exists() and paths.wal.stat().st_size:
            raise
        return database.connect(paths.database, "mode=ro&immutable=1")
    except sqlite3.DatabaseError:
        connection.close()
        raise
    return connection


@dataclass(frozen=True, slots=True)
class Broken:
    """The damage that was found; ``seq`` is None when the damage is in no single row."""

    seq: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Audit:
    """The result for a ledger. ``rows`` counts the valid rows, and ``last`` is the number of the last of them."""

    rows: int
    last: int
    head: Head | None  # of a ledger in which no damage was found
    broken: Broken | None
    set_aside: tuple[str, ...]  # names of damaged ledgers in the same directory
    complete_from: int = 1  # no evidence of this row or a later one was left out ...
    complete_since: float = 0.0  # ... and its wall time; 0: none of any row, or no checkpoint vouches for a time
    vouched: int = 0  # up to this row the checkpoints vouch for all that ever was in the ledger
    node: str = ""  # the origin of its checkpoints, as its newest receipt names it; empty: it does not say so
    compared: tuple[str, ...] = ()  # the origins of the checkpoints that were compared
    left_out: tuple[str, ...] = ()  # the origins of those that are of other nodes
    signed: int = 0  # rows with a signed document of their own, by one of the keys if any was given
    unsigned: int = 0  # rows that could have one, and have none
    first_unsigned: int = 0  # the first of them
    of_other_keys: Mapping[str, int] = field(default_factory=dict)  # by the id of a key that was not given, a first row


def verify(
    path: Path, checkpoints: Iterable[Checkpoint] = (), keys: Collection[bytes] = (), fold: Fold = states.replay
) -> Audit:  # fmt: skip
    """Check the tree, every row and event, the snapshot, the tail and SQLite's format, in one consistent view.

    ``checkpoints`` that were kept elsewhere also show rows that were cut off or replaced together with all of this.
    Those of other nodes are left out. With public ``keys``, each signed document must be signed by one of them, or name
    another key. ``fold``: finds rows that contradict each other.
    """
    paths, held = LedgerPaths(path), sorted(checkpoints, key=lambda each: each.size)
    documents = Documents(keys)
    count, last, head, broken, complete, vouched, node, ours = 0, 0, None, None, (1, 0.0), 0, "", set[str]()
    try:
        noted = noted_head(paths)
        with consistent_view(paths) as connection:
            database.check_version(connection, path)
            snapshot = database.snapshot_of(connection)
            for row in tree.check(connection, snapshot, database.rows(connection), noted):
                _check_document(row, documents)
                count, last = count + 1, row.seq
            _check_evidence(connection, snapshot.batches if snapshot is not None else (), documents)
            tree.check_no_others(connection, last)
            if snapshot is not None:
                ledger_rows.decode_records(snapshot.records)
                tree.check_folded(connection, snapshot)
                for seq, digest in tree.documents(connection, snapshot.cut):
                    _check(seq, documents.found, seq, digest)
                complete = _check_complete(connection, snapshot), 0.0
                _check_devices(connection, snapshot)
            database.load(connection, noted, fold)
            node = _node(connection)
            ours = _ours(connection, last, held, node)
            for checkpoint in held:
                if checkpoint.origin in ours:
                    _check_against(connection, last, vouched, checkpoint)
                    vouched = checkpoint.size
            seq, wall = entry_queries.first_from(connection, complete[0])
            if complete[0] > 1 and (seq <= vouched or not held):  # who appends a row chooses its time
                complete = complete[0], wall
            database.check_format(connection, path)
            head = Head.of(database.tree_of(connection))
    except CorruptLedgerError as error:
        broken = Broken(error.seq, joined(error.unreadable or error.message, *error.remedies))
    others = {checkpoint.origin for checkpoint in held} - ours if head else ()
    names = tuple(sorted(ours)), tuple(sorted(others))
    return Audit(
        count, last, head, broken, paths.set_aside(), *complete, vouched, node, *names,
        signed=documents.signed, unsigned=documents.unsigned, first_unsigned=documents.first_unsigned,
        of_other_keys=documents.of_other_keys,
    )  # fmt: skip


def _check_document(row: ledger_rows.LedgerRow, documents: Documents) -> None:
    """CorruptLedgerError if the row holds no event, or a signed document that is not its own."""
    if (entry := ledger_rows.entry(row)) is not None:
        _check(row.seq, documents.check, row.seq, entry.event, entry.device, row.body)


def _check(seq: int, check: Callable[..., None], *about: object) -> None:
    try:
        check(*about)
    except ReceiptError as error:
        raise CorruptLedgerError(f"row {seq}: {error.message}", seq) from error


def _node(connection: sqlite3.Connection) -> str:
    """The origin of the node that the newest receipt names; empty without such a name."""
    for newest in entry_queries.newest_entries(
        connection, None, None, 1, Window(kinds=frozenset({ledger_rows.PROVEN}))
    ):
        with suppress(
            ReceiptError, ValueError, LookupError, TypeError, RecursionError
        ):  # not signed, without a name, or planted
            envelope = newest.event.receipt.envelope  # type: ignore[union-attr] # its kind
            return log_name(json.loads(dsse.parsed(envelope).payload)["predicate"]["node"])
    return ""


def _ours(connection: sqlite3.Connection, last: int, held: Sequence[Checkpoint], node: str) -> set[str]:
    """The origins of this ledger: its receipt names it, or of a checkpoint, the ledger names the key or has the root.

    If the ledger names neither a node nor a key, all: it cannot disown a checkpoint.
    """
    keys = set[object]()
    for body in database.notes(connection, ledger_rows.KEY):
        with suppress(ValueError, LookupError, TypeError, RecursionError):  # planted
            keys.add(json.loads(body)["public_key"])
    return {
        each.origin
        for each in held
        if each.origin == node
        or not (node or keys)
        or any(key.hex() in keys for key in each.signed_by)
        or (0 < each.size <= last and tree.frontier(connection, each.size).root == each.root)
    }


def _check_against(connection: sqlite3.Connection, last: int, vouched: int, checkpoint: Checkpoint) -> None:
    """CorruptLedgerError unless the checkpoint is of this ledger. An older checkpoint vouches up to row ``vouched``."""
    size = checkpoint.size
    rows = quantity(size, "row")
    if size > last:
        gone = f"row {last + 1} is missing: the checkpoint counts {rows}, and the last one here is {last}"
        why = "rows were cut off, an older copy was put back, or the checkpoint was signed after this copy was made"
        raise CorruptLedgerError(f"{gone}; {why}", last + 1)
    if tree.frontier(connection, size).root != checkpoint.root:
        first = vouched + 1 if vouched < size else 1
        others = f"the rows from {first} to {size} are not those of the checkpoint of {rows}"
        why = "there are two histories, or the checkpoint is of another ledger that this node had"
        raise CorruptLedgerError(f"{others}: {why}", first)


def _check_evidence(connection: sqlite3.Connection, vouched: Sequence[Batch], documents: Documents) -> None:
    """Check each batch of evidence, and that there is no other evidence. ``vouched``: those of the snapshot."""
    if database.batches(connection) != tuple(vouched):
        raise CorruptLedgerError("there is a batch of evidence without a snapshot")
    first = database.EARLIEST
    for batch in vouched:
        kept = tuple(database.evidence(connection, first, batch.cut))
        tree.check_leaves(connection, kept)
        compaction.check_evidence(batch, kept)
        warnings = database.warnings(connection, first, batch.cut)
        for row in kept:
            _check_document(row, documents)
            if ledger_rows.is_warning(row) != (row.seq in warnings) and row.is_marked:
                raise CorruptLedgerError(f"row {row.seq}: the mark of a warning was changed", row.seq)
        first = batch.cut + 1
    for row in database.evidence(connection, first):
        raise CorruptLedgerError(f"row {row.seq} is among the evidence, and no batch has it", row.seq)


def _check_complete(connection: sqlite3.Connection, snapshot: Snapshot) -> int:
    """CorruptLedgerError names the first row that was left out of the evidence. Returns from which row on none was.

    A deleted row of an older version does not say what it was. No such row follows one of this version.
    """
    if any(batch.cut > snapshot.cut for batch in snapshot.batches):
        raise CorruptLedgerError("a batch of evidence has rows that were not folded")
    first = complete_from = snapshot.dropped + 1
    of_older = True
    for cut in (*(batch.cut for batch in snapshot.batches), snapshot.cut):
        kept = {row.seq: row for row in database.evidence(connection, first, cut)}
        deleted: dict[int, Mark] = {}
        for seq, mark in tree.marks(connection, first, cut):
            if seq in kept:
                of_older = of_older and not kept[seq].is_marked
            elif mark is not None:
                of_older, deleted[seq] = False, mark
            elif of_older:
                complete_from = seq + 1
            else:
                raise CorruptLedgerError(f"row {seq} is missing, and does not say that it is no evidence", seq)
        compaction.check_complete(tuple(kept.values()), deleted)
        first = cut + 1
    return complete_from


def _check_devices(connection: sqlite3.Connection, snapshot: Snapshot) -> None:
    """CorruptLedgerError if the snapshot describes a device otherwise than the newest row about that."""
    described = dict[str, DeviceInfo]()
    for row in database.evidence(connection):
        if row.kind in _DESCRIBES and (held := ledger_rows.entry(row)) is not None:
            described[row.device] = held.event.device  # type: ignore[union-attr] # its kind
    for record in ledger_rows.decode_records(snapshot.records):
        if described.get(record.device.uuid, record.device) != record.device:
            why = f"it describes {record.device.uuid} otherwise than its rows"
            raise CorruptLedgerError(f"the snapshot is not valid: {why}")
