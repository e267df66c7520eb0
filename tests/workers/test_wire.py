"""What one side says is what the other hears."""

from __future__ import annotations

import pytest

from ground.documents import strict_json
from scrub_api.measurements import Uncovered
from scrubber.core import measured
from scrubber.core.measured import Cleared, Mismatch, Restored, Scratched, Verified
from scrubber.core.model import Blame, Evicted, HealthRead, Holder, InTheWay, Outcome, Step, Vitals, Xid
from scrubber.devices.base import Address
from scrubber.steps.orders import Order, Report
from scrubber.workers import wire
from scrubber.workers.wire import Answer, Assignment, Packet, Prepare, Ready, StepRequest

WRONG = Mismatch(4, 5, 6, 7)
HOLDERS = (Holder(8, 9.5, 'a "command"\n', "pod", "D"), Holder(10, 11.0, "é", None))
FINDINGS = (
    None,
    Evicted(HOLDERS, (8,), HOLDERS[:1]),
    Cleared(1, 3, 2, WRONG, (64,), 60, (Uncovered("why", 5),), ("random", "zero"), ("a: 1 -> 2",)),
    Verified(1, ("zero",), 2, WRONG),
    Scratched(8, 7, 2, 99, ("caches",)),
    measured.Tested(("address",), ("random",), 4096, WRONG, 8, (2, 5), ("a page was retired",)),
    Restored(("a: 1 -> 2",), ("a lock",)),
    HealthRead(Vitals(lost=True, xids=(Xid(1, 79),))),
    InTheWay(HOLDERS, unnamed=True),
)
ORDER = Order(("random", "zero"), "00ff", terminate_foreign=True, tenancy=(12.5, 13.5), grace=3.0)


@pytest.mark.parametrize(
    "message",
    [
        Assignment(Address("simulated", "/somewhere"), ("/a", "/b c"), whole_node=True, service=4711, reach=("/a",)),
        Answer(progress=(1, 2)),
        *(Answer(report=Report(Outcome.FAILED, "why", Blame.TENANT, it)) for it in FINDINGS),
        Packet(ready=Ready("13.0")),
        Packet(ended=(7, -9)),
    ],
)
def test_a_message_is_one_line_and_is_read_back(message) -> None:
    line = strict_json.encode(message)
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")
    assert strict_json.decode(type(message), line) == message


@pytest.mark.parametrize(
    "request_",
    [
        StepRequest(Step.CLEAR, ORDER),
        StepRequest(Step.EVICT, Order()),
        Prepare(Address("nvidia", "{}"), (3, 2, 1)),
        Prepare(Address("simulated", "/somewhere"), None),
    ],
)
def test_a_request_to_a_worker_survives_encoding(request_) -> None:
    assert wire.request(strict_json.encode(request_)) == request_
