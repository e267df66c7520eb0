"""``autoclave explain``: what is wrong with a GPU, what to do, and the story of how it came into its state.

The service makes the sentences about events (``words/event_text``), about the offer (``core/offering``) and the advice
(``words/device_status``). This module and ``text_tables`` make the lines about the present state.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from autoclave.cli import ENVIRONMENT, options, service_call
from autoclave.cli.output import document, human, text_tables
from ground import paths
from ground.errors import Unreachable
from ground.quantities import quantity
from scrub_api import admin_client, views

SHOWN = 5  # events
HOLDERS = 5  # processes; a tenant may have hundreds
LATELY = 86_400.0  # seconds; who has not asked since then has no line of his own


@click.command(context_settings=ENVIRONMENT)
@options.gpu
@options.output("text", "json", "yaml")
@options.run_dir
@options.state_dir
def explain(gpu: str, output: str, run_dir: Path, state_dir: Path) -> None:
    """Explain why a GPU is in its state, and what to do.

    The last events come last; `autoclave history GPU` lists all of them.

    If the service does not answer, this is about the last state in the ledger in --state-dir, and stderr says so.
    """

    async def ask(admin: admin_client.AdminClient) -> tuple[views.Explanation, views.ServiceStatus]:
        return await admin.explain(gpu), (await admin.status([gpu])).service

    service: views.ServiceStatus | None = None
    try:
        explanation, service = service_call.ask(run_dir, ask)
        about = {"policy": service.policy, "policy_source": service.policy_source}
    except Unreachable as error:
        file = importlib.import_module("autoclave.cli.offline").Offline(paths.ledger(state_dir), error)
        explanation, about = file.explain(gpu), {"from_file": str(file.path)}
    if output == "text":
        human.say(*story(explanation, service, time.time()))
    else:
        document.emit(document.single("Explanation", document.explanation(explanation) | about), output)


def story(explanation: views.Explanation, service: views.ServiceStatus | None, now: float) -> Iterator[str]:
    """The lines: the GPU, its state, what to do, its policy, and its last events.

    ``service`` None: it does not answer.
    """
    device = explanation.device
    yield f"GPU {device.name}  {device.device}  {device.model}, {human.size(device.memory_bytes)}"
    yield ""
    when = "last" if service is None else "now "
    yield f"{when}    {device.state} since {human.local(device.since)} ({_ago(now - device.since)})"
    ledger_fault = service is not None and bool(service.ledger_fault)
    yield from _indented(_state(device, ledger_fault=ledger_fault))
    broken = ("repair the ledger: `autoclave doctor` says how",) if ledger_fault else ()
    deeds = (*broken, *explanation.advice)  # a line for each
    yield f"advice  {deeds[0] if deeds else 'nothing to do'}"
    yield from _indented(deeds[1:])
    if service is not None:
        source = "shipped" if service.policy_source == service.policy else service.policy_source
        yield f"policy  {service.policy} ({source}): {explanation.policy_why}"
    if device.use_counter:
        yield f"use counter  {device.use_counter}"
    yield from _fence(device, service, now)
    yield ""
    events = [entry for entry in text_tables.one_for_each_start(explanation.entries) if _tells(entry)]
    if len(events) > SHOWN:
        yield f"last {SHOWN} of {len(events)} events; all: `autoclave history {device.argument} --steps`"
    for entry in events[-SHOWN:]:
        yield f"{human.local(entry.at)}  {_ago(now - entry.at):>8}  {entry.text}"


def _fence(device: views.DeviceStatus, service: views.ServiceStatus | None, now: float) -> Iterator[str]:
    """What the fence does with others, and who they were."""
    if device.fence:
        yield f"fence   {device.fence}"
    elif service is not None and service.fence_lacks:
        yield f"fence   none stands, so it is not known who asks for the GPU: {service.fence_lacks}"
    openers = [it for it in device.openers if not (it.exempt and it.ignored)]  # `fence plan` shows who is let in
    lately = [it for it in reversed(openers) if now - it.last < LATELY] or openers[-1:]
    asked = [
        f"{it}{_standing(it)}: at least {quantity(it.times, 'open attempt')}, {it.refused or 'none'} refused, "
        f"last {_ago(now - it.last)}"
        for it in lately
    ]
    if earlier := len(openers) - len(lately):
        asked.append(
            f"{quantity(earlier, 'more opener')} of the last week: `autoclave history {device.argument} --warnings`"
        )
    if asked:
        yield f"asked   {asked[0]}"
    yield from _indented(asked[1:])


def _standing(opener: views.OpenerView) -> str:
    """What the policy says of a program that asked."""
    words = [word for word, holds in (("exempt", opener.exempt), ("bystander", opener.ignored)) if holds]
    return f" ({', '.join(words)})" if words else ""


def _tells(entry: views.HistoryEntry) -> bool:
    """Whether the event says more than the lines above it: not a step that began or passed."""
    if entry.kind == "steps-recorded":
        return any(result["outcome"] != "passed" for result in json.loads(entry.body)["results"])
    return entry.kind not in {"scrub-started", "probation-started"}


def _state(device: views.DeviceStatus, *, ledger_fault: bool) -> Iterator[str]:
    """The lines about the present state."""
    if device.quarantine is not None:
        yield f"{device.quarantine.reason}: {device.quarantine.detail}"
    if device.job is not None:
        yield from _running(device.job, device.quarantine)
    elif device.quarantine is not None:
        if device.policy_rule:  # there is none in a ledger's file, and no service that would try anything
            yield _way_back(device.quarantine, device.argument, ledger_fault=ledger_fault)
    elif note := text_tables.describe(device):
        yield note
    if device.setback and device.quarantine is None and device.job is not None:
        yield f"the scrub before it failed: {device.setback}"
    # The UID of the pod or of its claim, or a job of Slurm in that pod
    if device.owner and device.pod and not device.was_opened_idle:
        yield f"its owner is called {device.owner} in the events"
    if device.holders:
        rest = len(device.holders) - HOLDERS
        more = f" and {rest} more: `autoclave status {device.argument} -o json` names all" if rest > 0 else ""
        first = sorted(device.holders, key=lambda it: not it.foreign)[:HOLDERS]
        yield f"used by {', '.join(map(str, first))}{more}"
    if device.receipt is not None:
        signed = f"signed by {device.receipt.signed_by}" if device.receipt.signed_by else "not signed"
        yield f"proven by receipt {device.receipt.id}, {signed}"
        yield from (f"  {line}" for line in text_tables.proof(device.receipt))
    about = "healthy" if device.state in {"granted", "in_use"} else "offered to pods or jobs"
    # The reason of a quarantine has a line above, as the state has.
    said = (device.quarantine and device.policy_rule) or device.why in {device.state, text_tables.describe(device)}
    why = "" if said else f": {device.why}"
    yield f"{'' if device.healthy else 'not '}{about}{why}"


def _running(job: views.JobStatus, quarantine: views.QuarantineStatus | None) -> Iterator[str]:
    """What runs now, for how long, and what the last probation ended with."""
    spent = ""
    if job.step_seconds is not None and job.step_limit is not None:
        spent = f", for {human.span(job.step_seconds)} of at most {human.span(job.step_limit)}"
    yield f"a {'scrub' if quarantine is None else 'probation'} runs: {text_tables.job(job)}{spent}"
    if quarantine is not None and quarantine.last_try:
        yield f"the probation before it ended with: {quarantine.last_try}"


def _way_back(quarantine: views.QuarantineStatus, gpu: str, *, ledger_fault: bool) -> str:
    tried = f"probations so far: {quarantine.probes}" if quarantine.probes else "no probation yet"
    if quarantine.last_try:
        tried = f"{tried}, last result: {quarantine.last_try}"
    if quarantine.next_probe_seconds is None:
        return f"quarantined until `autoclave reinstate {gpu}`; {tried}"
    due = quarantine.next_probe_seconds
    when = f"in {human.span(due)}" if due else "as soon as the fault has ended and no process has the GPU open"
    if ledger_fault and not due:
        when = "as soon as the ledger can be written"
    return f"next probation, on the {quarantine.next_path} path, {when}; {tried}"


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"        {line}" for line in lines)


def _ago(seconds: float) -> str:
    return f"{human.span(seconds)} ago"
