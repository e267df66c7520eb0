"""Checks of the GPUs, by the status of the scrub service."""

from __future__ import annotations

from collections.abc import Iterator

from autoclave.doctor import base
from policies.model import Clear
from scrubber.core import remedy, views
from scrubber.core.measurements import own_memory
from scrubber.core.model import State

LONG = 60.0  # seconds: by then the scrub of an unknown or dirty device has begun, unless something blocks it
DEFAULT = Clear()  # a receipt below its coverage means that the policy demanded less
ADVICE = {kind.value: it.advice for kind, it in remedy.REMEDIES.items()}


def _devices(facts: base.NodeFacts) -> Iterator[base.Finding]:
    if facts.status is None:
        return
    devices = facts.status.devices
    found = [finding for device in devices for finding in _device(device, facts.now)]
    yield from found
    if not devices:
        remedy = "check that the driver is loaded and sees the GPUs; the service then finds them by itself"
        yield base.warning("device", "the scrub service sees no GPU on this node", remedy)
    elif not found:
        yield base.ok("device", f"nothing is wrong with any of the {len(devices)} GPUs")


def _device(device: views.DeviceStatus, now: float) -> Iterator[base.Finding]:
    gpu, see = f"GPU {device.name} ({device.device})", f"`autoclave explain {device.name}` says what happened"
    out = device.quarantine
    if out is not None:
        text = f"{gpu} is quarantined: {out.reason}: {out.detail}"
        yield base.warning("device", text, f"{ADVICE[out.reason]}; {see}" if out.reason in ADVICE else see)
    elif device.state in {State.UNKNOWN.value, State.DIRTY.value} and device.setback:
        yield base.warning("device", f"{gpu} is {device.state} and not offered: {device.setback}", see)
    elif device.state in {State.UNKNOWN.value, State.DIRTY.value} and now - device.since > LONG:
        yield base.warning("device", f"{gpu} has been {device.state} for more than {LONG:.0f} seconds", see)
    elif not device.healthy and device.state in {State.CLEAN.value, State.GRANTED.value, State.IN_USE.value}:
        yield base.warning("device", f"{gpu} is {device.state} and not offered to the kubelet: {device.why}", see)
    if device.state == State.GRANTED.value and device.receipt is None:
        yield base.warning("device", f"{gpu} was handed out without a proof", see)
    yield from _coverage(device, gpu)
    for setting in device.receipt.unsupported if device.receipt else ():
        remedy = "take it out of the policy's rule for this GPU"
        yield base.warning("device", f"{gpu}: {setting}; its scrubs leave it out", remedy)


def _coverage(device: views.DeviceStatus, gpu: str) -> Iterator[base.Finding]:
    receipt = device.receipt
    if receipt is None:
        return
    allowed = min(own_memory(receipt.uncovered), DEFAULT.own_memory)
    if receipt.covered_bytes + allowed >= DEFAULT.min_coverage * receipt.allocatable_bytes:
        return
    share = receipt.covered_bytes / receipt.allocatable_bytes
    words = "clear.min_coverage and clear.own_memory"
    remedy = f"compare {words} in the policy with their defaults, then `autoclave scrub {device.name}`"
    text = f"the proof of {gpu} covers {share:.2%} of its memory, less than {DEFAULT.min_coverage:.2%}"
    yield base.warning("device", text, remedy)


CHECKS = (_devices,)
