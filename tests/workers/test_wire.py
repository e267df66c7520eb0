"""What one side says is what the other hears."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from scrubber.core.measurements import Mismatch
from scrubber.core.model import Blame, Findings, Holder, Outcome, Step, Vitals, Xid
from scrubber.devices.base import Address
from scrubber.steps.base import Order, Report
from scrubber.workers import wire
from scrubber.workers.wire import Answer, Assignment, StepRequest

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


def test_an_assignment_survives_the_wire() -> None:
    assignment = Assignment(
        Address("simulated", "/somewhere"),
        ("/a", "/b c"),
        whole_node=True,
        service=4711,
        reach=("/a",),
        bystanders=("ns:/x",),
        pod_logs="/host/var/log/pods",
    )
    assert wire.assignment(wire.encode(assignment)) == assignment


@pytest.mark.parametrize("step", Step)
def test_a_request_is_decoded_as_it_was_encoded(step: Step) -> None:
    order = Order(("random", "zero"), "00ff", terminate_foreign=True, tenancy=(12.5, 13.5), grace=3.0)
    for request in (StepRequest(step, order), StepRequest(step, replace(order, tenancy=None))):
        assert wire.request(wire.encode(request)) == request


@pytest.mark.parametrize(
    "answer",
    [
        Answer(progress=(1, 2)),
        Answer(report=Report(Outcome.PASSED)),
        Answer(report=Report(Outcome.FAILED, "why", Blame.TENANT, FULL)),
    ],
)
def test_an_answer_is_decoded_as_it_was_encoded(answer: Answer) -> None:
    line = wire.encode(answer)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert wire.answer(line) == answer


def test_a_value_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot be stored"):
        wire.encode(Answer(report=Report(Outcome.PASSED, detail=b"bytes")))  # type: ignore[arg-type] # on purpose


def test_a_request_with_an_unknown_step_is_refused() -> None:
    said = json.loads(wire.encode(StepRequest(Step.CLEAR, Order())))
    with pytest.raises(ValueError, match="polish"):
        wire.request(json.dumps(said | {"step": "polish"}).encode())
