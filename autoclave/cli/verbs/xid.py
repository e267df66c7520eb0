"""``autoclave xid``: explains a driver error code, what each preset and this node do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from autoclave.cli import ENVIRONMENT, options, service_call
from autoclave.cli.output import document, human, text_tables
from ground.documents import units
from ground.documents.faults import DocumentError
from ground.errors import AutoclaveError, Unreachable
from policies import load, match, xids
from policies.policy_model import PolicySet
from policies.xids import Preset, Treatment, Xids

PATIENCE = 2.0  # seconds: the meaning of a code is known without the service
DEFAULT = "default"
_TESTED = (xids.RequiredAction.RESET_GPU, xids.RequiredAction.RESTART_VM_OR_NODE)
SCOPES = {
    xids.XidScope.APP: "one process",
    xids.XidScope.GPU: "one GPU",
    xids.XidScope.LINK: "a link of the GPU: its other end may be the culprit",
    xids.XidScope.NODE: "the node, or the power of the board",
}


@dataclass(frozen=True, slots=True)
class XidPolicy:
    """A policy, its origin, and its XID rules by rule name; no rules when it cannot be read."""

    name: str
    origin: str
    rules: Mapping[str, Xids]


def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Codes for the shell."""
    del ctx, param
    rows = xids.ROWS.values()
    return [CompletionItem(str(row.code), help=row.mnemonic) for row in rows if str(row.code).startswith(incomplete)]


@click.command(context_settings=ENVIRONMENT)
@click.argument("code", required=False, type=options.IntRange(1), shell_complete=complete)
@click.option(
    "--policy",
    metavar="NAME|FILE",
    shell_complete=options.complete_policies,
    help="Use this policy instead of the one in force.",
)
@options.output("text", "json", "yaml")
@options.run_dir
def xid(code: int | None, policy: str | None, output: str, run_dir: Path) -> None:
    """Explain a driver error code, and what this node does about it.

    Without CODE, lists all codes of the catalogue: what the policy does, what NVIDIA asks for, and the meaning. The
    running service says which policy is in force; when it does not answer, the shipped default is used. The policy file
    is read from this machine. If the service runs in a container and reads another file, name that file with --policy.
    """
    chosen = _read(load.load(policy), f"as named: {policy}") if policy else _in_force(run_dir)
    if output != "text" and code is None:
        document.emit(document.listing("Xid", [_fields(known, chosen) for known in xids.ROWS]), output)
    elif output != "text":
        document.emit(document.single("Xid", _fields(code or 0, chosen)), output)
    elif code is None:
        rows = []
        for known in xids.ROWS.values():
            done = {xids.treatment(rules, known.code).value for rules in chosen.rules.values()}
            does = "by rule" if len(done) > 1 else "".join(done)
            rows.append([str(known.code), does.replace(" ", "-"), known.action.value, known.description])
        document.show_table(("CODE", "POLICY", "ASKS", "MEANING"), rows)
    else:
        row = xids.ROWS.get(code)
        human.say(f"xid {code}  {row.mnemonic if row else 'unknown'}")
        human.say(*text_tables.plain((), list(_pairs(code, chosen))).splitlines())


def _in_force(run_dir: Path) -> XidPolicy:
    try:
        service = service_call.ask_now(run_dir, lambda admin: admin.status(timeout=PATIENCE)).service
    except Unreachable:
        return _read(load.load(DEFAULT), f"the shipped default, as no service answers in {run_dir}")
    except AutoclaveError as error:  # a service with a fault: people look up codes just then
        why = f"as the service in {run_dir} does not answer: {error}"
        return _read(load.load(DEFAULT), f"the shipped default, {why}")
    source = service.policy_source
    try:
        policies = load.load(source)
    except (DocumentError, OSError):  # the service goes on with the policy it has read before
        return XidPolicy(service.policy, f"in force here; {source} cannot be read now: see --policy", {})
    if policies.name != service.policy:  # the service may see other files
        return XidPolicy(
            service.policy, f"in force here; {source} is {policies.name} as seen from here: see --policy", {}
        )
    return _read(policies, f"in force here, read from {source}")


def _read(policies: PolicySet, origin: str) -> XidPolicy:
    rules = {match.DEFAULTS: policies.defaults.quarantine.xids}
    rules |= {rule.name: rule.policy.quarantine.xids for rule in policies.rules}
    return XidPolicy(policies.name, origin, rules)


def _pairs(code: int, chosen: XidPolicy) -> Iterator[tuple[str, str]]:
    """What is known of the code, what each policy does about it, and what a person should do."""
    row = xids.ROWS.get(code)
    if row:
        yield "meaning", row.description
        yield "concerns", SCOPES[row.scope]
        yield "catalogue asks for", f"{row.action.value} (NVIDIA, {xids.DATE})"
    yield from ((f"under preset {preset}", done) for preset, done in _presets(code).items())
    if note := _explain_presets(code):
        yield "note", note
    yield "policy", f"{chosen.name}, {chosen.origin}"
    for rule, rules in chosen.rules.items():
        done = xids.treatment(rules, code)
        does = done.value
        if done is not Treatment.QUARANTINE and xids.repeats_count(rules, code):
            does += f", and quarantine at {xids.REPEATS} within {units.format_duration(xids.REPEATS_WITHIN)}"
        yield f"under rule {rule}", does
    yield "to do", _to_do(code, chosen)


def _to_do(code: int, chosen: XidPolicy) -> str:
    """What a person should do. After a code that quarantines, Autoclave resets and tests the GPU first."""
    asked = xids.remedy(code)
    if xids.required_action(code) not in _TESTED:
        return asked
    if not any(xids.treatment(rules, code) is Treatment.QUARANTINE for rules in chosen.rules.values()):
        return asked
    return f"in quarantine, wait for Autoclave's test of the GPU, with a reset; if it fails, {asked}"


def _explain_presets(code: int) -> str:
    """The reason behind the presets, when the table does not show it."""
    row = xids.ROWS.get(code)
    if row is None:
        return f"NVIDIA's catalogue of {xids.DATE} does not know it: under each preset the policy's `unknown` decides"
    if code == xids.RECOVERY:
        return "catalog: its message decides; shown is what is done when that cannot be read"
    if row.application:
        return "an application error: counted under each preset; the policy's `codes` may say otherwise"
    if row.action is xids.RequiredAction.NONE:
        return "catalog: no action is published, so the policy's `unknown` decides"
    return ""


def _presets(code: int) -> dict[str, str]:
    return {preset.value: xids.treatment(Xids(preset=preset), code).value for preset in Preset}


def _fields(code: int, chosen: XidPolicy) -> dict[str, object]:
    row = xids.ROWS.get(code)
    repeats = {"count": xids.REPEATS, "within": xids.REPEATS_WITHIN}
    return {
        "code": code,
        "known": row is not None,
        "mnemonic": row.mnemonic if row else "",
        "description": row.description if row else "",
        "scope": row.scope.value if row else "",
        "action": row.action.value if row else "",
        "application": row is not None and row.application,
        "remedy": xids.remedy(code),
        "presets": _presets(code),
        "policy": {
            "name": chosen.name,
            "origin": chosen.origin,
            "rules": [
                {
                    "rule": rule,
                    "treatment": xids.treatment(rules, code).value,
                    "repeats": repeats if xids.repeats_count(rules, code) else None,
                }
                for rule, rules in chosen.rules.items()
            ],
        },
    }
