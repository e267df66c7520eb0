"""What tables say about devices, scrubs and history. Pure: views in, cells out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scrubber.cli import words
from scrubber.core import view

STATUS = ("GPU", "UUID", "STATE", "FOR", "HEALTHY", "NOTE")
WIDE = (
    "GPU", "UUID", "STATE", "FOR", "HEALTHY", "MEMORY", "PCI", "NUMA", "DRIVER", "POLICY", "RECEIPT", "MODEL", "NOTE",
)  # fmt: skip
RESULTS = ("GPU", "UUID", "CLEAN", "RESIDUE", "COVERAGE", "TIME", "RECEIPT")
HISTORY = ("ROW", "TIME", "GPU", "WHAT")


def status(devices: Sequence[view.DeviceStatus], now: float) -> list[list[str]]:
    """One row a device, in what fits into 80 columns."""
    short = words.shortened([device.device for device in devices])
    return [[*_head(device, short[device.device], now), note(device)] for device in devices]


def wide(devices: Sequence[view.DeviceStatus], now: float) -> list[list[str]]:
    """One row a device, with everything that is short."""
    return [
        [
            *_head(device, device.device, now),
            words.size(device.memory_bytes),
            device.pci_address,
            "" if device.numa_node is None else str(device.numa_node),
            device.driver.rpartition(" ")[0],  # without the number of its instance
            device.policy_rule,
            device.receipt.id if device.receipt else "",
            f"{device.model} (MIG)" if device.mig and "MIG" not in device.model else device.model,
            note(device),
        ]
        for device in devices
    ]


def _head(device: view.DeviceStatus, uuid: str, now: float) -> list[str]:
    healthy = "yes" if device.healthy else "no"
    return [device.name, uuid, device.state, words.span(now - device.since), healthy]


def note(device: view.DeviceStatus) -> str:
    """The most telling thing about a device."""
    if device.quarantine is not None:
        return f"{device.quarantine.reason}: {device.quarantine.detail}"
    if device.job is not None:
        return job(device.job)
    if device.owner:
        return f"used by {device.owner}"
    if device.setback:
        return device.setback
    return "" if device.why == device.state else device.why


def job(it: view.JobStatus) -> str:
    """How far a job is."""
    share = f" {it.done_bytes / it.total_bytes:.0%}" if it.total_bytes else ""
    return f"{it.path} path: {it.step or 'starting'}{share}"


def results(progress: Sequence[view.ScrubProgress], devices: Mapping[str, view.DeviceStatus]) -> list[list[str]]:
    """One row a device: what was proven."""
    short = words.shortened(list(devices))
    return [
        [devices[it.device].name, short[it.device], *_result(it.result)] for it in progress if it.result is not None
    ]


def _result(result: view.ScrubResult) -> list[str]:
    if result.running:
        return ["running", "", "", "", ""]
    receipt = result.receipt
    if not result.clean or receipt is None:
        return ["no", "", "", "", ""]
    return [
        "yes",
        words.size(receipt.residue_bytes),
        f"{receipt.covered_bytes / receipt.allocatable_bytes:.2%}" if receipt.allocatable_bytes else "",
        words.took(sum(step.seconds for step in receipt.steps)),
        receipt.id,
    ]


def history(entries: Sequence[view.HistoryEntry]) -> list[list[str]]:
    """One row an event."""
    return [[str(entry.seq), words.local(entry.at), entry.name, entry.text] for entry in entries]
