"""``autoclave receipt list``: a row for each tenancy, with its wipe and who signed it, from service or ledger file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from autoclave.cli import audited_ledger, service_call
from autoclave.cli.offline import EVERY, Offline
from autoclave.cli.output import document, human, text_tables
from ground import paths
from ground.errors import Unreachable
from ground.quantities import quantity
from policies.values import FenceMode
from scrub_api import admin_client, views
from scrub_api.device_messages import device_name
from scrubber.core import device_names, tenancies
from scrubber.core.events import Described, Discovered, LedgerEntry, ScrubPassed, TenancyClosed
from scrubber.core.model import Moment, Receipt, signer_of
from scrubber.core.tenancies import TenancyRow
from scrubber.ledger import ledger_rows
from scrubber.ledger.ledger_rows import CorruptLedgerError
from scrubber.receipts import dsse, row_documents, statement

EARLIER = 200  # rows of a GPU from before --since: they tell who had it then, and which key signed its receipt
KINDS = tuple(ledger_rows.KINDS[event] for event in tenancies.EVENTS)
DESCRIBING = tuple(ledger_rows.KINDS[event] for event in (Discovered, Described))
FIELDS = (
    "node", "began", "ended", "device", "index", "slice", "model", "simulated", "tenant", "pod", "uid", "owner",
    "actor", "result", "note", "receipt", "signature", "wipe", "wiped", "wiped_bytes", "allocatable_bytes",
    "residue_bytes", "wipe_signature", "fence", "others_let_through", "others_refused", "others_until_wiped",
    "others_refused_until_wiped", "closing_signature", "row", "vouched",
)  # fmt: skip
TABLE = (
    "BEGAN", "ENDED", "GPU", "TENANT", "ACTOR", "RESULT", "RECEIPT", "SIGNATURE",
    "WIPED", "WIPE", "COVERAGE", "RESIDUE", "BY", "OTHERS",
)  # fmt: skip

NOT_ITS_OWN = "not its own"
OTHERS = ("others_let_through", "others_refused", "others_until_wiped", "others_refused_until_wiped")


@dataclass(frozen=True, slots=True)
class About:
    """How the ledger described the device of a hand-over when it began; empty if the row that did so was dropped."""

    simulated: bool  # never changes
    index: int | None = None
    slice: int | None = None
    model: str = ""


Rows = Sequence[tuple[TenancyRow, About]]
History = Callable[..., Awaitable[Sequence[views.HistoryEntry]]]


def read(
    file: Path | None, run_dir: Path, state_dir: Path, gpu: str, since: float, *, audited: bool = False
) -> Rows:  # fmt: skip
    """The tenancies since then, and some before: from the file, the service, or its ledger if it does not answer.

    ``audited``: all of them, because who appends rows chooses their times.
    """

    async def ask(admin: admin_client.AdminClient) -> Rows:
        async def history(gpu: str, **which: Any) -> Sequence[views.HistoryEntry]:  # noqa: ANN401 - handed on
            return await admin.history(gpu, warn=human.warn, **which)

        status = await admin.status()
        _warn(since, status.service.history_since, status.service.set_aside)
        return await _rows(history, gpu, since, {device.device: device.model for device in status.devices})

    try:
        if file is None:
            return service_call.ask(run_dir, ask)
        ledger = Offline(file)
    except Unreachable as error:
        ledger = Offline(paths.ledger(state_dir), error)
    _warn(since, 0.0 if audited else ledger.kept[0], ledger.set_aside)
    return asyncio.run(_rows(ledger.history, gpu, 0.0 if audited else since, ledger.models))


def vouched(file: Path, state_dir: Path, checkpoints: tuple[Path, ...], keys: tuple[Path, ...]) -> int | None:
    """The last row of a copy that the checkpoints vouch for, None without checkpoints. An error if it is not intact."""
    found = audited_ledger.audited(file, state_dir, checkpoints, keys)
    if found.broken is not None:
        remedy = f"`autoclave ledger verify {file}` with the same flags says more"
        raise CorruptLedgerError(f"cannot trust the ledger {file}: {found.broken.why}", found.broken.seq, remedy)
    if since := audited_ledger.complete_since(found):
        human.warn(f"earlier hand-overs may be missing: the evidence is {since}")
    return found.vouched if checkpoints else None


async def _rows(history: History, gpu: str, since: float, models: Mapping[str, str]) -> Rows:
    """The tenancies since then, and of each GPU one from before, if there is one: so each has its true beginning.

    ``gpu``: only those of this one, as ``_is_of`` says; InvalidRequest if no GPU was ever called so.
    """
    rows = {row.seq: row for row in await history("", since=since, limit=EVERY, kinds=KINDS)}

    async def with_earlier(devices: Iterable[str], limit: int) -> list[TenancyRow]:
        for device in devices:
            rows.update({row.seq: row for row in await history(device, until=since, limit=limit, kinds=KINDS)})
        events = (
            LedgerEntry(seq, row.device, Moment(row.at, 0.0), row.op, ledger_rows.decode(row.kind, row.body))
            for seq, row in sorted(rows.items())
        )
        return tenancies.tenancies(events)

    found = await with_earlier({*models, *(row.device for row in rows.values())} if since else (), EARLIER)
    cut_off = {row.device for row in rows.values()} - {row.device for row in found if not _lasted(row, since)}
    if since and cut_off:
        found = await with_earlier(cut_off, EVERY)
    described = await history("", limit=EVERY, kinds=DESCRIBING)
    present = {it.device: About(it.simulated, it.index, it.slice, models.get(it.device, "")) for it in rows.values()}
    listed = [(row, _about(row, described, present[row.device])) for row in found]
    if gpu and not (listed := [(row, about) for row, about in listed if _is_of(gpu, row, about)]):
        await history(gpu, limit=1, kinds=KINDS)
    return listed


def _is_of(gpu: str, row: TenancyRow, about: About) -> bool:
    """Whether the hand-over is of a GPU that was called so then: a later description or device changes nothing.

    Also one of a GPU whose index of then is not known.
    """
    if not device_names.is_index(gpu):
        return row.device.lower().startswith(gpu.lower())
    return about.index is None or gpu in (device_name(about.index, about.slice), str(about.index))


def _about(row: TenancyRow, described: Iterable[views.HistoryEntry], present: About) -> About:
    """From the rows of then: what is written later changes nothing of a hand-over that has begun.

    ``present``: how the device is described now. If no row describes it, that has not changed since they were dropped.
    Nothing vouches for that, so a signed document counts more.
    """
    describing = [it for it in described if it.device == row.device]
    if not describing:
        signed = _signed_device(row)
        return replace(present, **signed) if signed else present
    before = (ledger_rows.decode(it.kind, it.body) for it in reversed(describing) if it.seq <= row.row)
    match next(before, None):
        case Discovered(device) | Described(device):
            return About(device.simulated, device.index, device.slice, device.model)
        case _:
            return About(present.simulated)


def _signed_device(row: TenancyRow) -> dict[str, Any]:
    """What its signed receipts say of the device; empty: they do not say it."""
    about = next((predicate["device"] for predicate in _predicates(row)), None)
    return {"model": str(about.get("model", "")), "simulated": bool(about.get("simulated"))} if about else {}


def _lasted(row: TenancyRow, since: float) -> bool:
    """Whether the tenancy went on, or waited for its wipe, at that time or later."""
    return row.ended is None or row.wipe is None or row.wipe.finished.wall >= since


def _warn(since: float, kept: float, set_aside: Sequence[str]) -> None:
    if since < kept:
        human.warn(f"the ledger has no events from before {human.local(kept)}")
    for name in set_aside:
        human.warn(f"earlier hand-overs may be in {name}, a damaged ledger: `autoclave ledger export` prints its rows")


def warn_of_earlier(listed: Rows, since: float) -> None:
    """Say that the list is not whole, to somebody who has not chosen ``since``."""
    if not all(_lasted(row, since) for row, _ in listed):
        human.warn(f"earlier hand-overs are not shown: only those since {human.local(since)}; --since shows more")


def show(
    listed: Rows, node: str, output: str, *, since: float, until: float, host: str, vouched: int | None = None
) -> None:  # fmt: skip
    """Print the hand-overs of this time: those that began before its end, and were not wiped before its beginning.

    A wipe for which no checkpoint vouches hides none.

    ``until`` 0: until now. ``node``: the name of all; empty: that of their signed receipts. ``host``: the name if these
    do not say it. ``vouched``: the last row that a checkpoint vouches for; None: none were given.
    """
    rows = [
        (row, about)
        for row, about in listed
        if (_lasted(row, since) or _is_vouched(row, vouched) is False)
        and (not until or _to_milliseconds(row.began) <= until)
    ]
    signed_on = statement.as_said(node)
    others = {_signed_on(row) for row, _ in rows} - {"", signed_on}
    if node and others:
        names = ", ".join(sorted(others))
        human.warn(f"receipts of the list are signed for {names}, not for {node} (--node-name): is it of another node?")
    if newer := sum(_is_vouched(row, vouched) is False for row, _ in rows):
        human.warn(f"the checkpoints do not vouch for all rows of {quantity(newer, 'hand-over')} (vouched)")
    if output == "table":
        last = {None: [], True: ["yes"], False: ["no"]}
        cells = [[*_cells(row, about), *last[_is_vouched(row, vouched)]] for row, about in rows]
        document.show_table(TABLE if vouched is None else (*TABLE, "VOUCHED"), cells)
        return
    known = next(filter(None, (_signed_on(row) for row, _ in reversed(listed))), host)
    items = [_item(row, about, node or _signed_on(row) or known, vouched) for row, about in rows]
    if output == "csv":
        document.emit_csv(FIELDS, [list(item.values()) for item in items])
    elif output in {"json", "yaml"}:
        document.emit(document.listing("Handover", items), output)
    else:
        for item in items:
            document.emit_line(item)


def _signed_on(row: TenancyRow) -> str:
    """The name of the node in its signed receipts; empty if it has none, or they name no node."""
    return next((str(predicate["node"]) for predicate in _predicates(row) if "node" in predicate), "")


def _predicates(row: TenancyRow) -> Iterator[dict[str, Any]]:
    """Of its signed receipts, if they are its own."""
    for receipt in (row.proof, row.wipe):
        if receipt is None or not receipt.envelope:
            continue
        if not row_documents.why_not_its_own(ScrubPassed("", receipt), row.device):
            yield json.loads(dsse.parsed(receipt.envelope).payload)["predicate"]


def _item(row: TenancyRow, about: About, node: str, vouched: int | None) -> dict[str, object]:
    wipe = row.wipe
    cells = {
        "node": node, "began": human.iso(row.began), "ended": None if row.ended is None else human.iso(row.ended),
        **asdict(about), "result": _result(row), "signature": _signature(row),
        "wipe": wipe.id if wipe else "", "wiped": human.iso(wipe.finished.wall) if wipe else None,
        "wiped_bytes": wipe.covered_bytes if wipe else None,
        "allocatable_bytes": wipe.allocatable_bytes if wipe else None,
        "residue_bytes": _residue(wipe) if wipe else None, "wipe_signature": _wiped_by(row),
        "vouched": _is_vouched(row, vouched), **_fence(row),
    }  # fmt: skip
    return {name: cells[name] if name in cells else getattr(row, name) for name in FIELDS}


def _cells(row: TenancyRow, about: About) -> list[str]:
    gpu = row.device if about.index is None else device_name(about.index, about.slice)
    ended = "" if row.ended is None else human.local(row.ended)
    cells = [human.local(row.began), ended, gpu, row.tenant, row.actor, _result(row), row.receipt, _signature(row)]
    if row.wipe is None:
        return [*cells, "", "", "", "", "", ""]
    residue = _residue(row.wipe)
    shown = "unknown" if residue is None else human.size(residue)
    done = human.local(row.wipe.finished.wall)
    return [*cells, done, row.wipe.id, text_tables.coverage(row.wipe), shown, _wiped_by(row), _others(row)]


def _fence(row: TenancyRow) -> dict[str, object]:
    """What the closing receipt says of others; nothing where it is not known."""
    if row.closed is None:
        return {"fence": "", **dict.fromkeys(OTHERS), "closing_signature": ""}
    guarded = row.closed.ended.guarded
    known, later = guarded.mode is not FenceMode.OFF, row.closed.until_wiped
    later_known = later.mode is not FenceMode.OFF
    flaws = *guarded.flaws, *_later_flaws(row.closed)
    return {
        "fence": ", ".join([guarded.modes, *flaws]) if known else f"not known: {guarded.why}",
        "others_let_through": guarded.let_through if known else None,
        "others_refused": guarded.refused if known else None,
        "others_until_wiped": later.let_through if later_known else None,
        "others_refused_until_wiped": later.refused if later_known else None,
        "closing_signature": _signer(row.closed, row.device) if row.closed_as_listed else NOT_ITS_OWN,
    }


def _others(row: TenancyRow) -> str:
    if row.closed is None:
        return ""
    guarded = row.closed.ended.guarded
    if not row.closed_as_listed:
        return NOT_ITS_OWN
    if guarded.mode is FenceMode.OFF:
        return "not known"
    later = row.closed.until_wiped
    counts = ((later.let_through, "let through"), (later.refused, "refused"))
    wiped = [f"{times} {what} until it was wiped" for times, what in counts if times]
    asked = f"{quantity(guarded.let_through, 'open attempt')} let through, {guarded.refused} refused"
    return ", ".join([asked, *wiped, *guarded.flaws, *_later_flaws(row.closed)])


def _later_flaws(closed: TenancyClosed) -> list[str]:
    """Why others may not be counted from then until the wipe, where that is not said of the tenancy."""
    if closed.until_wiped.mode is FenceMode.OFF:
        return [f"until wiped not known: {closed.until_wiped.why}"]
    return [f"until wiped {flaw}" for flaw in closed.until_wiped.flaws if flaw not in closed.ended.guarded.flaws]


def _to_milliseconds(at: float) -> float:
    """As a list prints it: who copies a time from the list means this hand-over, too."""
    return int(at * 1000) / 1000


def _is_vouched(row: TenancyRow, vouched: int | None) -> bool | None:
    """Whether the checkpoints vouch for all rows that the line is made of; None without checkpoints."""
    return None if vouched is None else row.last_row <= vouched


def _result(row: TenancyRow) -> str:
    return "proven" if row.proven else "unproven"


def _signature(row: TenancyRow) -> str:
    if not row.receipt:
        return ""
    return "unknown" if row.proof is None else _signer(ScrubPassed("", row.proof), row.device)


def _wiped_by(row: TenancyRow) -> str:
    return "" if row.wipe is None else _signer(ScrubPassed("", row.wipe), row.device)


def _signer(event: ScrubPassed | TenancyClosed, device: str) -> str:
    """Who signed the document of this event, as it says itself."""
    if row_documents.why_not_its_own(event, device):
        return NOT_ITS_OWN
    return signer_of(row_documents.document_in(event) or "") or "unsigned"


def _residue(wipe: Receipt) -> int | None:
    """What the wipe has found of the tenants before it; None if that is not known."""
    return None if wipe.searched_bytes == 0 else wipe.residue_bytes
