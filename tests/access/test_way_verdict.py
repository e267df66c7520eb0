"""The verdict on a way, by the rules that the report prints."""

from __future__ import annotations

import dataclasses
import json

import pytest

from access.probe_answers import Answer, HandOver, NoAnswer, Refused, Unanswered, Unsuited, parse
from access.way_verdict import RULES, Trial, Verdict, exit_code, has_gpu, judge, left_out
from access.ways import BY_NAME, OWNER_CASE, WAYS

FAIL, NOT_TRIED, NOT_APPLICABLE, PASS = Verdict
CLOSED = Answer(
    nonce="00", control=True, looked=("/dev/nvidia[0-9]*",), seen=(), opened=(), refused=(), context="unknown",
    context_why="", secret="unknown",  # noqa: S106 - no password
    owner="holding", variable="", user=0, capabilities="0", driver="", system="6.18",
)  # fmt: skip
OPENED = ("/dev/nvidia0 c:195:0",)


def answer(**changes) -> Answer:
    return dataclasses.replace(CLOSED, **changes)


def hand_over(**changes) -> HandOver:
    return dataclasses.replace(
        HandOver(given=True, same=True, still_open=False, known=True, given_later=False), **changes
    )


def trial(outcome, way="no-request", *, owner_held=True, plain_ran=True) -> Trial:
    return Trial(BY_NAME[way], outcome, owner_held, plain_ran)


REFUSED = Refused("violates PodSecurity")
TABLE = [
    ("opened nothing", trial(answer()), PASS, "it saw no node"),
    (
        "opening is refused",
        trial(answer(seen=OPENED, refused=("/dev/nvidia0 c:195:0 EPERM",))),
        PASS, "it saw 1 node; 1 attempt refused: EPERM",
    ),
    (
        "no device answers",
        trial(answer(seen=OPENED, refused=("/dev/nvidia0 c:195:0 ENXIO",))),
        NOT_TRIED, "not refused, and failed for another reason: /dev/nvidia0 c:195:0 ENXIO",
    ),
    (
        "a node cannot be made",
        trial(answer(refused=("mknod /tmp/node c:195:0 ENOENT", "mknod /node c:195:0 EPERM")), "own-node"),
        PASS, "it saw no node; 2 attempts refused: ENOENT, EPERM",
    ),
    ("opened", trial(answer(seen=OPENED, opened=OPENED)), FAIL, "it opened /dev/nvidia0 c:195:0"),
    ("a context", trial(answer(context="made")), FAIL, "it made a CUDA context"),
    ("the secret", trial(answer(secret="found")), FAIL, "it read the owner's secret"),  # noqa: S106 - no word
    ("no context", trial(answer(context="refused", context_why="cuInit answers 100")), PASS, "it saw no node"),
    ("opened without an owner", trial(answer(opened=OPENED), owner_held=False), FAIL, "it opened"),
    ("the owner is gone", trial(answer(), owner_held=False), NOT_TRIED, "the owner did not have its GPU any more"),
    ("it never tries", trial(answer(control=False)), NOT_TRIED, "could not even open /dev/null"),
    ("it never looks", trial(answer(looked=())), NOT_TRIED, "the probe looked nowhere"),
    ("no answer", trial(Unanswered("it did not start")), NOT_TRIED, "it did not start"),
    ("no such way", trial(Unsuited("there are no pods")), NOT_APPLICABLE, "there are no pods"),
    ("refused", trial(REFUSED, "privileged"), PASS, "refused at admission: violates PodSecurity"),
    ("all are refused", trial(REFUSED, "privileged", plain_ran=False), NOT_TRIED, "so was a container"),
    ("no variable", trial(answer(), "image-variable"), NOT_TRIED, "NVIDIA_VISIBLE_DEVICES is not 'all'"),
    (
        "NVIDIA's runtime has replaced the variable",
        trial(answer(variable="void", seen=OPENED, refused=("/dev/nvidia0 c:195:0 EPERM",)), "runtime-class"),
        PASS, "it saw 1 node; 1 attempt refused: EPERM",
    ),
    ("a variable", trial(answer(variable="all"), "image-variable"), PASS, "it saw no node"),
    ("given on while open", trial(hand_over(still_open=True), "leftover"), FAIL, "while another process still had it"),
    ("given on later", trial(hand_over(), "leftover"), PASS, "only after the process had ended"),
    ("another GPU", trial(hand_over(same=False), "leftover"), NOT_TRIED, "got another GPU"),
    ("another, while open", trial(hand_over(same=False, still_open=True), "leftover"), NOT_TRIED, "got another GPU"),
    ("ended by luck", trial(hand_over(known=False), "leftover"), NOT_TRIED, "perhaps by luck"),
    (
        "held back by luck",
        trial(hand_over(known=False, given=False, given_later=True), "leftover"),
        NOT_TRIED, "perhaps by luck",
    ),
    ("found", trial(hand_over(known=False, still_open=True), "leftover"), FAIL, "still had it"),
    ("held back", trial(hand_over(given=False, given_later=True), "kept-open"), PASS, "only after the process"),
    ("given to nobody", trial(hand_over(given=False), "kept-open"), NOT_TRIED, "no container got the GPU afterwards"),
    ("a hand-over has no owner", trial(hand_over(), "leftover", owner_held=False), PASS, "only after"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "verdict", "why"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_each_outcome_has_the_verdict_of_its_rule(given, verdict, why):
    finding = judge(given)
    assert (finding.verdict, why in finding.why) == (verdict, True), finding


def test_each_rule_decides_in_the_table():
    decided = {next(rule for rule in RULES if rule.why(given)) for _, given, _, _ in TABLE}
    assert [rule.says for rule in RULES if rule not in decided] == []


OWNER = answer(seen=OPENED, opened=OPENED)
GOOD, BAD = trial(answer()), trial(answer(opened=OPENED))
UNTRIED, NONE = trial(Unanswered("late")), trial(Unsuited("no pods"))


@pytest.mark.parametrize(
    ("owner", "trials", "code"),
    [
        (OWNER, [GOOD], 0),
        (OWNER, [GOOD, NONE], 0),
        (OWNER, [GOOD, UNTRIED], 2),
        (OWNER, [UNTRIED], 2),
        (OWNER, [NONE], 2),
        (OWNER, [], 2),
        (OWNER, [GOOD, UNTRIED, BAD], 1),
        (answer(), [GOOD], 2),
        (answer(opened=OPENED, control=False), [GOOD], 2),
        (Unanswered("no GPU is free"), [GOOD], 2),
        (Unanswered("no GPU is free"), [GOOD, BAD], 1),
    ],
)
def test_only_a_whole_run_without_an_opening_ends_with_zero(owner, trials, code):
    assert exit_code(owner, [judge(each) for each in trials]) == code


def test_a_way_that_was_left_out_counts_for_nothing():
    assert exit_code(OWNER, [judge(GOOD), left_out(BY_NAME["privileged"], "it was left out")]) == 0
    assert exit_code(OWNER, [left_out(BY_NAME["privileged"], "it was left out")]) == 2


def test_only_who_has_opened_a_gpu_has_it():
    assert has_gpu(OWNER)
    assert not any(has_gpu(outcome) for outcome in (answer(seen=OPENED), REFUSED, hand_over()))


def test_three_cases_of_the_conformance_suite_are_marked():
    marked = [OWNER_CASE, *(way.conformance for way in WAYS if way.conformance)]
    assert len(marked) == 3
    assert len(WAYS) == 16


def line(**changes) -> bytes:
    return json.dumps(dataclasses.asdict(CLOSED) | changes).encode()


def test_an_answer_is_read_as_it_was_written():
    assert parse(line(opened=list(OPENED)), "00") == answer(opened=OPENED)
    assert answer(opened=OPENED).numbers == {"c:195:0"}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"== CUDA ==", "no answer of the probe"),
        (b"[" * 60000, "nested too deeply"),
        (line(nonce="11"), "it is of another run"),
        (line(context="perhaps"), "an unknown word"),
        (line(seen=["\x1b[2J"]), "cannot be printed"),
        (line(seen=["x" * 241]), "too long"),
        (line(seen=["x"] * 65), "a list in it is too long"),
        (line(more=1), "exactly the fields"),
        (line(opened="all"), "no answer of the probe"),
        (bytes(range(128, 256)), "no answer of the probe"),
    ],
)
def test_a_foreign_answer_is_refused_in_a_sentence(said, why):
    with pytest.raises(NoAnswer, match=why) as refused:
        parse(said, "00")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 400
