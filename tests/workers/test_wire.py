"""What one side says is what the other hears."""

from __future__ import annotations

import pytest

from ground.documents import strict_json
from scrubber.core.measured import Mismatch
from scrubber.core.model import Blame, Findings, Holder, Outcome, Step, Vitals, Xid
from scrubber.devices.base import Address
from scrubber.steps.orders import Order, Report
from scrubber.workers import wire
from scrubber.workers.wire import Answer, Assignment, Packet, Prepare, Ready, StepRequest

FULL = Findings(
    covered_bytes=1,
    allocatable_bytes=2,
    residue_bytes=3,
    mismatch=Mismatch(4, 5, 6, 7),
    holders=(Holder(8, 9.5, 'a "command"\n', "pod", "D"), Holder(10, 11.0, "é", None)),
    terminated=(8,),
    drift=("a: 1 -> 2",),
    vitals=Vitals(lost=True, xids=(Xid(1, 79),)),
)
ORDER = Order(("random", "zero"), "00ff", terminate_foreign=True, tenancy=(12.5, 13.5), grace=3.0)


@pytest.mark.parametrize(
    "message",
    [
        Assignment(Address("simulated", "/somewhere"), ("/a", "/b c"), whole_node=True, service=4711, reach=("/a",)),
        Answer(progress=(1, 2)),
        Answer(report=Report(Outcome.FAILED, "why", Blame.TENANT, FULL)),
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
