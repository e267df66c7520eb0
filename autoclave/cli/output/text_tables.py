"""Headers and cells of the tables about devices, scrubs, receipts and history, as text for grep and awk.

The text has no colours, no lines, and no cut or wrapped cells. Two spaces separate columns, and an empty cell is a
dash, so that ``awk '{print $3}'`` finds the third column. ``terminal`` draws the same cells for people.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autoclave.cli.output import human
from ground.quantities import quantity
from scrub_api import views
from scrub_api.device_messages import state_words
from scrub_api.measurements import PATTERN_LEFT, UNSEARCHED, ZEROS, Measurements

EMPTY = "-"

Rows = Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Page:
    """A table that changes in place, for a screen that may have no room for all rows."""

    headers: Sequence[str]
    rows: Rows
    urgent: int  # this many rows at the beginning matter most
    below: Callable[[int], Iterable[str]]  # the lines below the table, if only the first N rows are shown
    notes: Sequence[str]


def plain(headers: Sequence[str], rows: Rows) -> str:
    """A table as text."""
    cells = [[human.printable(cell) or EMPTY for cell in row] for row in (headers, *rows) if row]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


STATUS = ("GPU", "UUID", "STATE", "FOR", "HEALTHY", "NOTE")
WIDE = (
    "GPU", "UUID", "STATE", "FOR", "HEALTHY", "MEMORY", "PCI", "NUMA", "DRIVER", "POLICY", "RECEIPT", "COVERAGE",
    "USES", "MODEL", "NOTE",
)  # fmt: skip
# The states of core.model, which loads slowly.
STATES = ("clean", "granted", "in_use", "scrubbing", "dirty", "unknown", "quarantined")
MOST = 3  # others on a device that a note names
RESULTS = ("GPU", "UUID", "CLEAN", "RESIDUE", "COVERAGE", "TESTS", "TIME", "RECEIPT")
_NOTHING = ("",) * (len(RESULTS) - 3)  # the columns after the name and the verdict
HISTORY = ("ROW", "TIME", "GPU", "WHAT")


def status(devices: Sequence[views.DeviceStatus], now: float) -> list[list[str]]:
    """One row for each device, at most 80 columns wide."""
    short = human.shortened([device.device for device in devices])
    return [[*_head(device, short[device.device], now), _note(device)] for device in devices]


def wide(devices: Sequence[views.DeviceStatus], now: float) -> list[list[str]]:
    """One row for each device, usually at most 200 columns wide."""
    return [
        [
            *_head(device, device.device, now),
            human.size(device.memory_bytes),
            device.pci_address,
            "" if device.numa_node is None else str(device.numa_node),
            device.driver.rpartition(" ")[0],  # without the number of its instance
            device.policy_rule,
            device.receipt.id if device.receipt else "",
            coverage(device.receipt) if device.receipt else "",
            device.use_counter_kind,
            _model(device),
            _note(device),
        ]
        for device in devices
    ]


def summary(devices: Sequence[views.DeviceStatus], total: int) -> str:
    """How many devices are in each state, in one line. ``total``: how many there are, with those not selected."""
    count = Counter(device.state for device in devices)
    states = ", ".join(f"{count[state]} {state_words(state)}" for state in STATES if count[state])
    unhealthy = sum(not device.healthy for device in devices)
    of = f"{len(devices)} of " if len(devices) < total else ""
    parts = [f"{of}{quantity(total, 'GPU')}", *([f": {states}"] if devices else [])]
    return "".join([*parts, *([f"; {unhealthy} not healthy"] if unhealthy != count["quarantined"] else [])])


def fence(devices: Sequence[views.DeviceStatus], lacks: str) -> str:
    """What the fence does, and who asked for a device that was not given to him, in one line.

    ``lacks``: why no fence stands, though the policy wants one. Empty if it wants none, too.
    """
    modes = Counter(device.fence for device in devices if device.fence)
    if not modes:
        return f"fence: none stands, and pods are not kept off GPUs of others: {lacks}" if lacks else ""
    modes_in_words = ", ".join(f"{mode} on {quantity(number, 'GPU')}" for mode, number in sorted(modes.items()))
    asked = [device for device in devices if not all(opener.ignored for opener in device.openers)]
    if not asked:
        return f"fence: {modes_in_words}"
    openers = (opener for device in asked for opener in device.openers if not opener.ignored)
    programs = len({(opener.command, opener.place) for opener in openers})
    names = ", ".join(f"`autoclave explain {device.argument}`" for device in asked[:1])
    return (
        f"fence: {modes_in_words}; {quantity(programs, 'program')} asked for GPUs that were not given to them: {names}"
    )


def _head(device: views.DeviceStatus, uuid: str, now: float) -> list[str]:
    healthy = "yes" if device.healthy else "no"
    return [device.name, uuid, device.state, human.span(now - device.since), healthy]


def _note(device: views.DeviceStatus) -> str:
    """The most important fact, and the command that says what to do about somebody else on the device."""
    note, others = describe(device), _others(device)
    return f"{note}: `autoclave explain {device.argument}`" if others and others in note else note


def describe(device: views.DeviceStatus) -> str:
    """The most important fact about a device."""
    if device.quarantine is not None:
        match device.quarantine.next_probe_seconds:
            case None:
                way_back = "waits for an operator"
            case 0.0:
                way_back = "next probation as soon as the fault has ended and nothing prevents it"
            case due:
                way_back = f"next probation in {human.span(due)}"
        if device.job is not None:
            way_back = f"probation runs: {job(device.job)}"
        return f"{device.quarantine.reason}: {device.quarantine.detail}; {way_back}"
    if device.job is not None:
        return job(device.job)
    if device.was_opened_idle:
        return f"opened while idle, by {device.pod or device.owner}"
    if tenant := device.pod or device.owner:
        used = f"{'granted to' if device.state == 'granted' else 'used by'} {tenant}{_others(device)}"
        return used if device.healthy else f"{used}; {device.why}"
    if device.setback:
        return device.setback
    return "" if device.why == device.state else device.why


def _others(device: views.DeviceStatus) -> str:
    """Who else is on a device that belongs to somebody, or that a container was."""
    if foreign := dict.fromkeys(it.pod or it.container or str(it) for it in device.holders if it.foreign):
        more = f" and {len(foreign) - MOST} more" if len(foreign) > MOST else ""
        return f", and also by {', '.join([*foreign][:MOST])}{more}"
    return "; another container was on it, too" if device.was_shared else ""


def job(status: views.JobStatus) -> str:
    """The progress of a job."""
    if status.queue_place is not None:
        return f"waiting for a slot, {human.ordinal(status.queue_place)} ({status.path} path)"
    share = f"{status.done_bytes / status.total_bytes:.0%}" if status.total_bytes else ""
    if status.step:
        still = f", no progress for {human.span(status.still_seconds or 0)}" if status.stalled else ""
        return f"{status.path} path: {views.step_words(status.step)} {share}".rstrip() + still
    return f"{status.path} path: {'between two steps' if share else 'starting'}"


def results(progress: Sequence[views.ScrubProgress], devices: Mapping[str, views.DeviceStatus]) -> list[list[str]]:
    """One row for each device: the result of its scrub."""
    short = human.shortened(list(devices))
    return [
        [devices[message.device].name, short[message.device], *_result(message.result)]
        for message in progress
        if message.result is not None
    ]


def _result(result: views.ScrubResult) -> list[str]:
    if result.running:
        return ["running", *_NOTHING]
    if result.left_alone or result.withdrawn:
        return ["yes" if result.state == "clean" else result.state, *_NOTHING]
    receipt = result.receipt
    if not result.clean or receipt is None:
        return ["no", *_NOTHING]
    return [
        "yes",
        "unknown" if receipt.searched_bytes == 0 else human.size(receipt.residue_bytes),
        coverage(receipt),
        str(len(receipt.tests) or ""),
        human.took(sum(step.seconds for step in receipt.steps)),
        receipt.id,
    ]


def proof(receipt: views.ReceiptView) -> Iterator[str]:
    """The last owner and the measurements of a receipt, as phrases. Leaves out what the path did not do."""
    if receipt.last_owner:
        yield f"the last owner was {receipt.last_owner}"
    written = f"{' and '.join(receipt.patterns)} written" if receipt.patterns else "overwritten"
    covered = f"{human.size(receipt.covered_bytes)} of {human.size(receipt.allocatable_bytes)}"
    yield f"{covered} ({coverage(receipt)}) {written} and read back"
    if receipt.leaves != ZEROS:
        yield PATTERN_LEFT
    if receipt.uncovered:
        parts = (f"{human.size(part.bytes)} {part.cause}" for part in receipt.uncovered)
        yield f"not covered: {', '.join(parts)}"
    if receipt.residue_bytes:
        first = f", the first at {receipt.residue_at[0]:#x}" if receipt.residue_at else ""
        yield f"{human.size(receipt.residue_bytes)} of residue{first}"
    if receipt.searched_bytes == 0:
        yield UNSEARCHED
    elif receipt.searched_bytes is not None:
        yield f"{human.size(receipt.searched_bytes)} searched for data of the last user"
    if receipt.units is not None:
        beyond = (
            f", {human.size(left)} of shared memory out of reach" if (left := receipt.shared_unreached_bytes) else ""
        )
        units = f"{receipt.units_reached}/{quantity(receipt.units, 'unit')}"
        yield f"shared memory and registers overwritten on {units}{beyond}"
    if receipt.units_left:
        yield f"not overwritten on the chip: {', '.join(receipt.units_left)}"
    if receipt.tests:
        yield f"tested: {', '.join(receipt.tests)}"
    if receipt.witness:
        yield f"use counter: {receipt.witness}"


def _model(device: views.DeviceStatus) -> str:
    model = device.model.removeprefix("NVIDIA ")
    return f"{model} (MIG)" if device.mig and "MIG" not in model else model


def coverage(receipt: Measurements) -> str:
    """The share of the memory that was overwritten and read back; empty if it was not measured."""
    return f"{receipt.covered_bytes / receipt.allocatable_bytes:.2%}" if receipt.allocatable_bytes else ""


def history(entries: Sequence[views.HistoryEntry]) -> list[list[str]]:
    """One row for each event."""
    return [[str(entry.seq), human.local(entry.at), entry.name, entry.text] for entry in entries]


def one_for_each_start(entries: Iterable[views.HistoryEntry]) -> list[views.HistoryEntry]:
    """The entries, with one entry for each start of a container: the last, which knows the most.

    A start is recorded when it is asked for, by the kubelet and by the container runtime, when it has a name, and when
    its process is seen.
    """
    events: list[views.HistoryEntry] = []  # newest first
    next_entries: dict[str, views.HistoryEntry] = {}  # by device
    for entry in reversed(list(entries)):
        if not _same_start(entry, next_entries.get(entry.device)):
            events.append(entry)
        next_entries[entry.device] = entry
    return events[::-1]


def _same_start(entry: views.HistoryEntry, next_entry: views.HistoryEntry | None) -> bool:
    if next_entry is None or (entry.kind, next_entry.kind) != ("in-use", "in-use"):
        return False
    before, after = (json.loads(row.body)["owner"] for row in (entry, next_entry))  # older rows lack some fields
    again = before.get("seen") and not after.get("seen")  # another container of the pod, or the same one once more
    same = all(before.get(field, False) == after.get(field, False) for field in ("container", "crowded", "unannounced"))
    return same and not again and before.get("name", "") in ("", after.get("name", ""))
