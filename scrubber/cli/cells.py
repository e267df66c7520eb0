"""What tables say about devices, scrubs and history. Pure: views in, cells out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from scrubber.cli import human
from scrubber.core import views

STATUS = ("GPU", "UUID", "STATE", "FOR", "HEALTHY", "NOTE")
WIDE = (
    "GPU", "UUID", "STATE", "FOR", "HEALTHY", "MEMORY", "PCI", "NUMA", "DRIVER", "POLICY", "RECEIPT", "COVERAGE",
    "UNITS", "TESTS", "POD", "MODEL", "NOTE",
)  # fmt: skip
RESULTS = ("GPU", "UUID", "CLEAN", "RESIDUE", "COVERAGE", "UNITS", "TESTS", "TIME", "RECEIPT")
_NOTHING = ("",) * (len(RESULTS) - 3)  # beside its name and the verdict
HISTORY = ("ROW", "TIME", "GPU", "WHAT")


def status(devices: Sequence[views.DeviceStatus], now: float) -> list[list[str]]:
    """One row a device, in what fits into 80 columns."""
    short = human.shortened([device.device for device in devices])
    return [[*_head(device, short[device.device], now), note(device)] for device in devices]


def wide(devices: Sequence[views.DeviceStatus], now: float) -> list[list[str]]:
    """One row a device, with everything that is short."""
    return [
        [
            *_head(device, device.device, now),
            human.size(device.memory_bytes),
            device.pci_address,
            "" if device.numa_node is None else str(device.numa_node),
            device.driver.rpartition(" ")[0],  # without the number of its instance
            device.policy_rule,
            device.receipt.id if device.receipt else "",
            *_figures(device.receipt),
            device.pod.replace(", ", ",") or device.owner,
            f"{device.model} (MIG)" if device.mig and "MIG" not in device.model else device.model,
            note(device),
        ]
        for device in devices
    ]


def _head(device: views.DeviceStatus, uuid: str, now: float) -> list[str]:
    healthy = "yes" if device.healthy else "no"
    return [device.name, uuid, device.state, human.span(now - device.since), healthy]


def _next(quarantine: views.QuarantineStatus) -> str:
    match quarantine.next_probe_seconds:
        case None:
            return "waits for a person"
        case 0.0:
            return "tried again once the cause is gone"
        case due:
            return f"tried again in {human.span(due)}"


def note(device: views.DeviceStatus) -> str:
    """The most telling thing about a device."""
    if device.quarantine is not None:
        return f"{device.quarantine.reason}: {device.quarantine.detail}; {_next(device.quarantine)}"
    if device.job is not None:
        return job(device.job)
    if device.owner:
        return f"used by {device.pod or device.owner}"
    if device.pod:
        return f"granted to {device.pod}"
    if device.setback:
        return device.setback
    return "" if device.why == device.state else device.why


def job(it: views.JobStatus) -> str:
    """How far a job is."""
    share = f" {it.done_bytes / it.total_bytes:.0%}" if it.total_bytes else ""
    return f"{it.path} path: {it.step or 'starting'}{share}"


def results(progress: Sequence[views.ScrubProgress], devices: Mapping[str, views.DeviceStatus]) -> list[list[str]]:
    """One row a device: what was proven."""
    short = human.shortened(list(devices))
    return [
        [devices[it.device].name, short[it.device], *_result(it.result)] for it in progress if it.result is not None
    ]


def _result(result: views.ScrubResult) -> list[str]:
    if result.running:
        return ["running", *_NOTHING]
    receipt = result.receipt
    if not result.clean or receipt is None:
        return ["no", *_NOTHING]
    return [
        "yes",
        human.size(receipt.residue_bytes),
        _coverage(receipt),
        _units(receipt),
        str(len(receipt.tests) or ""),
        human.took(sum(step.seconds for step in receipt.steps)),
        receipt.id,
    ]


def proof(receipt: views.ReceiptView) -> Iterator[str]:
    """The figures of a receipt, in words; what its path did not do is not told."""
    written = f"{' and '.join(receipt.patterns)} written" if receipt.patterns else "overwritten"
    covered = f"{human.size(receipt.covered_bytes)} of {human.size(receipt.allocatable_bytes)}"
    yield f"{covered} ({_coverage(receipt)}) {written} and read back"
    if receipt.uncovered:
        parts = (f"{human.size(part.bytes)} {part.cause}" for part in receipt.uncovered)
        yield f"not covered: {', '.join(parts)}"
    if receipt.residue_bytes:
        first = f", the first at {receipt.residue_at[0]:#x}" if receipt.residue_at else ""
        yield f"{human.size(receipt.residue_bytes)} of the last user found{first}"
    if receipt.units is not None:
        yield f"memory on the chip overwritten on {_units(receipt)} units"
    if receipt.tests:
        yield f"tested: {', '.join(receipt.tests)}"


def _figures(receipt: views.ReceiptView | None) -> list[str]:
    if receipt is None:
        return ["", "", ""]
    return [_coverage(receipt), _units(receipt), ",".join(receipt.tests)]


def _coverage(receipt: views.ReceiptView) -> str:
    return f"{receipt.covered_bytes / receipt.allocatable_bytes:.2%}" if receipt.allocatable_bytes else ""


def _units(receipt: views.ReceiptView) -> str:
    return "" if receipt.units is None else f"{receipt.units_reached}/{receipt.units}"


def history(entries: Sequence[views.HistoryEntry]) -> list[list[str]]:
    """One row an event."""
    return [[str(entry.seq), human.local(entry.at), entry.name, entry.text] for entry in entries]
