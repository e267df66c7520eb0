"""The files of a run: a page for people, JSON for programs, and JUnit for CI."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from access import manifest_files
from access.probe_answers import Answer
from access.trials import NO_NODE, Run
from access.way_verdict import CLOSED, OPENED, RULES, Finding, Verdict, exit_code, has_gpu
from access.ways import OWNER_CASE, PLAIN
from containers import pages
from ground import private_files
from ground.errors import plain
from ground.quantities import quantity

FORMAT = "autoclave-access/1"
NOT_SHOWN = (
    "an exploit of the kernel, of the driver or of the runtime",
    "what root on the node can do, and whoever may change the node's configuration",
    "side channels: timing, power, shared caches",
    "processes that have the GPU at the same time on purpose: time slicing, MPS, MIG",
    "what is left in the memory of the GPU for the next container: `autoclave remnant` tries that",
)


@dataclass(frozen=True, slots=True)
class About:
    """How a run was done."""

    version: str
    on: str
    began: str  # in UTC
    seconds: float
    command: str  # without names of a cluster


def write(directory: Path, about: About, run: Run) -> tuple[Path, ...]:
    """Write all files; returns their paths."""
    texts = {"report.md": page(about, run), "result.json": document(about, run), "junit.xml": junit(about, run)}
    private_files.write_for_others(directory, texts)
    return tuple(directory / name for name in texts)


def headline(run: Run) -> str:
    """The result in a sentence."""
    opened = [finding.way.name for finding in run.findings if finding.verdict is Verdict.FAIL and finding.chosen]
    code = exit_code(run.owner, run.findings)
    if code == OPENED:
        did = "A GPU was opened that was not given, or was given on while another process had it open"
        return f"{did}, in {quantity(len(opened), 'way')}: {', '.join(opened)}."
    if code == CLOSED:
        tried = sum(finding.verdict in (Verdict.PASS, Verdict.FAIL) for finding in run.findings)
        ways = f" It was tried in {tried} of {len(run.findings)} ways." if tried < len(run.findings) else ""
        return f"No GPU was opened that was not given, and the owner had its own.{ways}"
    if not has_gpu(run.owner):
        return "There is no answer: no owner had a GPU, so nobody could have opened it."
    missing = [finding.way.name for finding in run.findings if finding.verdict is Verdict.NOT_TRIED and finding.chosen]
    says = f"There is no answer: nothing was opened, but not every way was tried: {', '.join(missing)}."
    if run.ended_by is not None or PLAIN.name in missing:
        return says
    flags = " ".join(f"--without {name}" for name in missing)
    return f"{says} To have an answer about the other ways, leave out what was not tried, as with `{flags}`."


def document(about: About, run: Run) -> str:
    """Everything, for programs."""
    whole = {
        "format": FORMAT,
        "tool": f"autoclave {about.version}",
        "on": about.on,
        "command": about.command,
        "began": about.began,
        "seconds": round(about.seconds, 1),
        "ended_early": _end(run),
        "left_behind": run.left_behind,
        "headline": headline(run),
        "exit_code": exit_code(run.owner, run.findings),
        "facts": run.facts,
        "owner": _outcome(run.owner),
        "ways": [_way(finding) for finding in run.findings],
        "conformance": [dict(zip(("case", "verdict", "why"), case, strict=True)) for case in _cases(run)],
        "rules": [{"verdict": rule.verdict.value, "rule": rule.says} for rule in RULES],
        "not_shown": NOT_SHOWN,
        "sha256": manifest_files.digests(),
    }
    return json.dumps(whole, indent=1) + "\n"


def page(about: About, run: Run) -> str:
    """One page."""
    owner = run.owner
    taken = (
        f"Taken {about.began} with `{about.command}` (autoclave {about.version}), in {about.seconds:.0f} s. An owner"
        " holds a GPU; outsiders that were given none try one way after the other. The verdicts follow the rules below,"
        " which are part of the program. Nobody has signed this page; the same command makes it again."
    )
    held = f"The owner opened {', '.join(owner.opened)}." if isinstance(owner, Answer) and owner.opened else ""
    tried = ""
    if isinstance(owner, Answer) and owner.context == "unknown":
        tried = f"Only device nodes were tried. Contexts and secrets are unknown: {owner.context_why}."
    early = f"The run ended early: {pages.words(_end(run))}." if _end(run) else ""
    left = f"**The clean-up failed**: {pages.words(run.left_behind)}." if run.left_behind else ""
    parts = (
        "# Who can open a GPU that it was not given",
        pages.wrapped(f"**{headline(run)}**"),
        *map(pages.wrapped, filter(None, (left, early, taken, held, tried))),
        pages.table(("fact", "value"), [(name, pages.words(value)) for name, value in run.facts.items()]),
        "## The ways",
        pages.table(
            ("way", "what is tried", "it needs", "verdict", "why"),
            [
                (each.way.name, each.way.tries, each.way.needs, _bold(each.verdict), pages.words(each.why))
                for each in run.findings
            ],
        ),
        "## What Kubernetes AI Conformance asks (KAR-0049, secure accelerator access)",
        pages.table(
            ("case of its suite", "verdict", "why"), [(*case[:2], pages.words(case[2])) for case in _cases(run)]
        ),
        "## What this page does not show",
        "\n".join(f"* {line}" for line in NOT_SHOWN),
        "## The rules of the verdict",
        "The first rule that applies decides.",
        "\n".join(pages.wrapped(f"{n}. *{rule.verdict.value}*: {rule.says}", "   ") for n, rule in enumerate(RULES, 1)),
        "## What was run",
        pages.table(("file", "SHA-256"), list(manifest_files.digests().items())),
    )
    return "\n\n".join(filter(None, parts)) + "\n"


def junit(about: About, run: Run) -> str:
    """A test case for the owner and for each way. A way that was to be tried and was not is an error."""
    suite = ET.Element("testsuite", name=f"autoclave access, {about.on}", time=f"{about.seconds:.1f}")
    owner = ET.SubElement(suite, "testcase", classname="access", name="owner")
    if not has_gpu(run.owner):
        ET.SubElement(owner, "error", message=plain(getattr(run.owner, "why", NO_NODE)))
    for finding in run.findings:
        case = ET.SubElement(suite, "testcase", classname="access", name=finding.way.name)
        kinds = {Verdict.FAIL: "failure", Verdict.NOT_APPLICABLE: "skipped"}
        kinds[Verdict.NOT_TRIED] = "error" if finding.chosen else "skipped"
        if (kind := kinds.get(finding.verdict)) is not None:
            ET.SubElement(case, kind, message=plain(finding.why))
    cases = list(suite)
    suite.set("tests", str(len(cases)))
    for name, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.find(kind) is not None for case in cases)))
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode") + "\n"


def _cases(run: Run) -> list[tuple[str, str, str]]:
    had = has_gpu(run.owner)
    rows = [(OWNER_CASE, "pass" if had else "not tried", "the owner has opened it" if had else "no owner had a GPU")]
    return rows + [
        (finding.way.conformance, finding.verdict.value, finding.why)
        for finding in run.findings
        if finding.way.conformance
    ]


def _way(finding: Finding) -> dict[str, object]:
    way = finding.way
    return {
        "way": way.name, "tries": way.tries, "needs": way.needs, "conformance": way.conformance,
        "verdict": finding.verdict.value, "why": finding.why, "chosen": finding.chosen,
        "outcome": _outcome(finding.outcome),
    }  # fmt: skip


def _outcome(outcome: object) -> Mapping[str, object]:
    """Its fields, and what kind it is. The nonce is of this run alone."""
    assert dataclasses.is_dataclass(outcome)  # noqa: S101 - every outcome is
    assert not isinstance(outcome, type)  # noqa: S101 - see above
    fields = dataclasses.asdict(outcome)
    fields.pop("nonce", None)
    return {"kind": type(outcome).__name__, **fields}


def _end(run: Run) -> str:
    if run.ended_by is None:
        return ""
    return "it was interrupted" if isinstance(run.ended_by, KeyboardInterrupt) else plain(str(run.ended_by))


def _bold(verdict: Verdict) -> str:
    return f"**{verdict.value}**" if verdict in (Verdict.FAIL, Verdict.NOT_TRIED) else verdict.value
