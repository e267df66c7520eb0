"""The verdict on each way, by rules that were written down before the run; the first rule that applies decides."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from access.probe_answers import Answer, HandOver, Outcome, Refused, Unanswered, Unsuited
from access.ways import Way
from ground.quantities import quantity

CLOSED, OPENED, NO_ANSWER = 0, 1, 2  # exit codes
_REFUSALS = frozenset({"EPERM", "EACCES"})
_OF_A_NODE = re.compile(r"^/.* [bc]:\d+:\d+ \w+$")  # an attempt to open it


class Verdict(Enum):
    """From the worst to the best."""

    FAIL = "fail"
    NOT_TRIED = "not tried"
    NOT_APPLICABLE = "not applicable"
    PASS = "pass"  # noqa: S105 - no password


@dataclass(frozen=True, slots=True)
class Trial:
    """One way as it went."""

    way: Way
    outcome: Outcome
    owner_held: bool  # the owner had its GPU open after the outsider had answered
    plain_ran: bool  # a container without rights and without a GPU ran in this run, and answered


@dataclass(frozen=True, slots=True)
class Rule:
    """``says``: what the rule is, for the page. ``why``: what it says of a trial; nothing if it does not apply."""

    verdict: Verdict
    says: str
    why: Callable[[Trial], str]


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on a way, with its reason. ``chosen``: False if the way was left out on purpose."""

    way: Way
    verdict: Verdict
    why: str
    outcome: Outcome
    chosen: bool = True


def judge(trial: Trial) -> Finding:
    """The verdict of the first rule that applies."""
    for rule in RULES:
        if why := rule.why(trial):
            return Finding(trial.way, rule.verdict, why, trial.outcome)
    raise AssertionError(trial)  # the last rule applies to each answer


def left_out(way: Way, why: str) -> Finding:
    """A way that nobody has asked for."""
    return Finding(way, Verdict.NOT_TRIED, why, Unanswered(why), chosen=False)


def exit_code(owner: Outcome, findings: Sequence[Finding]) -> int:
    """0 only if the owner had its GPU, each chosen way was tried as far as it exists, and nothing was opened."""
    chosen = [finding.verdict for finding in findings if finding.chosen]
    if Verdict.FAIL in chosen:
        return OPENED
    if not has_gpu(owner) or Verdict.NOT_TRIED in chosen or Verdict.PASS not in chosen:
        return NO_ANSWER
    return CLOSED


def has_gpu(outcome: Outcome) -> bool:
    """Whether this container has opened a node, by the same probe as the outsiders: the positive control."""
    return isinstance(outcome, Answer) and outcome.control and bool(outcome.opened)


def _opened(trial: Trial) -> str:
    answer = trial.outcome
    if not isinstance(answer, Answer):
        return ""
    ends = []
    if answer.opened:
        ends.append(f"it opened {_listed(answer.opened)}")
    if answer.context == "made":
        ends.append("it made a CUDA context")
    if answer.secret == "found":  # noqa: S105 - no password
        ends.append("it read the owner's secret")
    return ", ".join(ends)


def _listed(nodes: Sequence[str]) -> str:
    """The first nodes, and how many more."""
    shown = ", ".join(nodes[:3])
    return shown if len(nodes) <= 3 else f"{shown} and {len(nodes) - 3} more"  # noqa: PLR2004 - see above


def _failed(trial: Trial) -> str:
    """An error such as ENXIO is the answer of a device: the kernel had let the outsider open the node."""
    answer = trial.outcome
    refused = answer.refused if isinstance(answer, Answer) else ()
    failed = [text for text in refused if _OF_A_NODE.search(text) and text.rpartition(" ")[2] not in _REFUSALS]
    return f"an attempt was not refused, and failed for another reason: {failed[0]}" if failed else ""


def _nothing_opened(trial: Trial) -> str:
    answer = trial.outcome
    if not isinstance(answer, Answer):
        return ""
    errors = sorted({text.rpartition(" ")[2] for text in answer.refused})
    refusals = f"{quantity(len(answer.refused), 'attempt')} refused: {', '.join(errors)}" if errors else ""
    seen = f"it saw {quantity(len(answer.seen), 'node')}" if answer.seen else "it saw no node"
    return "; ".join(filter(None, (seen, refusals)))


def _hand_over(words: str, applies: Callable[[HandOver], bool]) -> Callable[[Trial], str]:
    return lambda trial: words if isinstance(trial.outcome, HandOver) and applies(trial.outcome) else ""


def _words_of(kind: type[Unanswered | Unsuited]) -> Callable[[Trial], str]:
    return lambda trial: trial.outcome.why if isinstance(trial.outcome, kind) else ""


def _if(words: str, applies: Callable[[Trial], bool]) -> Callable[[Trial], str]:
    return lambda trial: words if applies(trial) else ""


def _refused(trial: Trial) -> str:
    return f"refused at admission: {trial.outcome.why}" if isinstance(trial.outcome, Refused) else ""


def _answer(trial: Trial) -> Answer:
    assert isinstance(trial.outcome, Answer)  # noqa: S101 - every other outcome has a rule above
    return trial.outcome


RULES = (
    Rule(Verdict.NOT_APPLICABLE, "The place has no such way.", _words_of(Unsuited)),
    Rule(Verdict.NOT_TRIED, "The container did not run, or gave no answer of the probe.", _words_of(Unanswered)),
    Rule(Verdict.FAIL, "The outsider opened a node of a GPU, made a context, or read the owner's secret.", _opened),
    Rule(Verdict.FAIL, "The next container got the GPU while another process still had it open.",
         _hand_over("the GPU was given on while another process still had it open",
                    lambda outcome: outcome.given and outcome.same and outcome.still_open)),
    Rule(Verdict.NOT_TRIED, "The next container got another GPU.",
         _hand_over("the next container got another GPU; ask for all of the node by --count",
                    lambda outcome: outcome.given and not outcome.same)),
    Rule(Verdict.NOT_TRIED, "That process ended too early, and kept-open has not shown that a GPU in use is held back.",
         _hand_over("the old process had ended by then, perhaps by luck: see kept-open, which has no such race",
                    lambda outcome: not outcome.known)),
    Rule(Verdict.PASS, "The GPU was given on only after that process had ended.",
         _hand_over("the GPU was given on only after the process had ended",
                    lambda outcome: outcome.given or outcome.given_later)),
    Rule(Verdict.NOT_TRIED, "The GPU was given to nobody, not even after that process had ended.",
         _hand_over("no container got the GPU afterwards either", lambda _: True)),
    Rule(Verdict.NOT_TRIED, "The owner did not have its GPU open all the time.",
         _if("the owner did not have its GPU any more", lambda trial: not trial.owner_held)),
    Rule(Verdict.NOT_TRIED, "It was refused, and no container without rights ran in this run: that says nothing.",
         _if("it was refused, and so was a container without any right",
             lambda trial: isinstance(trial.outcome, Refused) and not trial.plain_ran)),
    Rule(Verdict.PASS, "The container was refused at admission.", _refused),
    Rule(Verdict.NOT_TRIED, "The probe could not open /dev/null: it could have opened nothing.",
         _if("the probe could not even open /dev/null", lambda trial: not _answer(trial).control)),
    Rule(Verdict.NOT_TRIED, "The probe looked nowhere.",
         _if("the probe looked nowhere", lambda trial: not _answer(trial).looked)),
    Rule(Verdict.NOT_TRIED, "The container had neither the variable that the way is about, nor a node.",
         _if("NVIDIA_VISIBLE_DEVICES is not 'all' in the container",
             lambda trial: trial.way.must_have not in ("", _answer(trial).variable) and not _answer(trial).seen)),
    Rule(Verdict.NOT_TRIED, "An attempt to open a node failed with an error that is no refusal.", _failed),
    Rule(Verdict.PASS, "The outsider opened nothing.", _nothing_opened),
)  # fmt: skip
