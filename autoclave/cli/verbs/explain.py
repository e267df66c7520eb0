"""``autoclave explain``: why a GPU is in its state, step by step.

The service makes the sentences about events (``words/event_text``), about the offer (``core/offering``) and the advice
(``words/device_status``). This module and ``table`` make the lines about the present state.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from pathlib import Path

import click

from autoclave.cli import ENVIRONMENT, document, human, options, service_call, table
from ground import paths
from ground.errors import Unreachable
from scrubber.api import admin_client
from scrubber.words import views


@click.command(context_settings=ENVIRONMENT)
@options.gpu
@options.output("text", "json", "yaml")
@options.run_dir
@options.state_dir
def explain(gpu: str, output: str, run_dir: Path, state_dir: Path) -> None:
    """Explain why a GPU is in its state, and what to do.

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
    """The lines: the GPU, its events, its state, its policy, and what to do. ``service`` None: it does not answer."""
    device = explanation.device
    yield f"GPU {device.name}  {device.device}  {device.model}, {human.size(device.memory_bytes)}"
    yield ""
    entries = table.one_for_each_start(explanation.entries)
    # Without the starts of steps that have ended: ``autoclave history`` lists all entries.
    for entry in (*(entry for entry in entries[:-1] if entry.kind != "step-started"), *entries[-1:]):
        yield f"{human.local(entry.at)}  {_ago(now - entry.at):>8}  {entry.text}"
    yield ""
    when = "last" if service is None else "now "
    yield f"{when}    {device.state} since {human.local(device.since)} ({_ago(now - device.since)})"
    yield from _state(device)
    if explanation.used_by:
        yield f"        used by {explanation.used_by}"
    if service is not None:
        yield f"policy  {service.policy} ({service.policy_source}): {explanation.policy_why}"
    broken = ("repair the ledger: `autoclave doctor` says how",) if service is not None and service.ledger_fault else ()
    for line in broken or explanation.advice or ("nothing to do",):
        yield f"advice  {line}"


def _state(device: views.DeviceStatus) -> Iterator[str]:
    """The lines about the present state."""
    if device.quarantine is not None:
        yield f"        {device.quarantine.reason}: {device.quarantine.detail}"
        if device.policy_rule:  # there is none in a ledger's file, and no service that would try anything
            yield f"        {_way_back(device.quarantine, device.argument)}"
    elif note := table.note(device):
        yield f"        {note}"
    if device.owner and device.pod:  # the UID of the pod or of its claim, or a job of Slurm in that pod
        yield f"        the entries above name it {device.owner}"
    if device.receipt is not None:
        signed = f"signed by {device.receipt.signed_by}" if device.receipt.signed_by else "not signed"
        yield f"        proven by receipt {device.receipt.id}, {signed}"
        yield from (f"          {line}" for line in table.proof(device.receipt))
    about = "healthy" if device.state in {"granted", "in_use"} else "offered to pods or jobs"
    # The reason of a quarantine has a line above, as the state has.
    why = "" if (device.quarantine and device.policy_rule) or device.why == device.state else f": {device.why}"
    yield f"        {'' if device.healthy else 'not '}{about}{why}"


def _way_back(quarantine: views.QuarantineStatus, gpu: str) -> str:
    tried = f"probations so far: {quarantine.probes}" if quarantine.probes else "no probation yet"
    if quarantine.last_try:
        tried = f"{tried}, last result: {quarantine.last_try}"
    if quarantine.next_probe_seconds is None:
        return f"quarantined until `autoclave reinstate {gpu}`; {tried}"
    due = quarantine.next_probe_seconds
    when = f"in {human.span(due)}" if due else "when the cause is gone and no process holds the GPU"
    return f"next probation, on the {quarantine.next_path} path, {when}; {tried}"


def _ago(seconds: float) -> str:
    return f"{human.span(seconds)} ago"
