"""``autoclave policy``: check policy files, show shipped policies and the one in force."""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from autoclave.cli import DONE, ENVIRONMENT, WRONG_USAGE, options, service_call
from autoclave.cli.output import document, human
from ground import paths
from ground.documents.faults import DocumentError, DocumentFault
from ground.errors import FatalError
from ground.quantities import quantity
from policies import load, match, policy_model
from policies.values import FenceMode


@click.group()
def policy() -> None:
    """Check and show policies, and name the one that applies to a GPU."""


@policy.command(context_settings=ENVIRONMENT)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=options.complete_policies)
@options.output("text", "json", "yaml")
def check(files: tuple[str, ...], output: str) -> int:
    """Check policy files and list every fault with its place.

    FILE is a file, the name of a shipped policy, or - for stdin.

    Exit code 2 when a service would refuse one of them. These are only warnings: a list that adds entries and lacks
    some of the shipped list, which it replaces, and an entry that exempts nobody, or every script.
    """
    checked = [_check(file) for file in dict.fromkeys(files)]
    if output != "text":
        document.emit(document.listing("PolicyCheck", map(_item, checked)), output)
    for file in checked:
        _say(file)
        if file.policies is not None and output == "text":
            policies = file.policies
            human.say(f"{file.name}: policy {policies.name} is valid, {quantity(len(policies.rules), 'rule')}")
    return WRONG_USAGE if any(file.policies is None for file in checked) else DONE


@dataclass(frozen=True, slots=True)
class _CheckedFile:
    """A policy file, and what a service would say of it."""

    name: str
    policies: policy_model.PolicySet | None  # None: it would refuse the file
    faults: tuple[DocumentFault, ...] = ()
    warnings: tuple[load.PolicyWarning, ...] = ()


def _check(file: str) -> _CheckedFile:
    name = "stdin" if file == "-" else file
    try:
        if file in load.shipped():
            return _CheckedFile(name, load.load(file))
        data = sys.stdin.buffer.read(load.LARGEST + 1) if file == "-" else load.read(file)
        return _CheckedFile(name, load.load_bytes(data, name), warnings=load.warnings_of(data, name))
    except DocumentError as error:
        return _CheckedFile(name, None, error.faults)


def _say(file: _CheckedFile) -> None:
    """Print what is wrong with it on stderr."""
    for line in (*file.faults, *(f"warning: {it}" for it in file.warnings)):
        click.echo(human.printable(str(line)), err=True)


def _item(file: _CheckedFile) -> dict[str, object]:
    about: dict[str, object] = {"name": "", "rules": None}
    if file.policies is not None:
        about = {"name": file.policies.name, "rules": len(file.policies.rules)}
    found = {"faults": [*map(asdict, file.faults)], "warnings": [*map(asdict, file.warnings)]}
    return {"file": file.name, "valid": file.policies is not None, **about, **found}


def _digest(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    if value is not None and not re.fullmatch("[0-9a-f]{16}", value):
        raise click.BadParameter("expected the 16 hexadecimal digits that a receipt has")
    return value


@policy.command(context_settings=ENVIRONMENT)
@click.argument("name", required=False, metavar="[NAME|FILE]", shell_complete=options.complete_policies)
@click.option(
    "--digest", metavar="DIGEST", allow_from_autoenv=False, callback=_digest,
    help="The settings or the exempt names of a receipt, or the policy of a row of the history.",
)  # fmt: skip
@options.state_dir
def show(name: str | None, digest: str | None, state_dir: Path) -> int:
    """Print a shipped policy with its comments, as a start for your own.

    Of a FILE, print the policy with all defaults filled in, also those of each rule: what a service would do with it.

    With --digest, print what a receipt names by its policy.digest, as JSON: the settings that decide what a proof is
    worth. Or what it names by fence.exempt, one name in a line: who may open a GPU at any time. Or the whole policy
    that a row of the history names. The node keeps all three for each policy that was in force. Elsewhere, only those
    of shipped policies are known.
    """
    if (name is None) == (digest is None):
        raise click.UsageError("give the name of a shipped policy, a policy file, or --digest")
    if digest is not None:
        click.echo(_named_by(digest, state_dir))
    elif name in load.shipped():
        click.echo(load.read_shipped(name), nl=False)
    else:
        return _show_file(name or "")
    return DONE


def _show_file(name: str) -> int:
    if not Path(name).exists():
        near = difflib.get_close_matches(name, load.shipped(), n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        shipped = ", ".join(load.shipped())
        raise FatalError(
            f"cannot show policy {name}{hint}: there is no such file, and the shipped policies are {shipped}"
        )
    file = _check(name)
    _say(file)
    if file.policies is None:
        return WRONG_USAGE
    document.emit(file.policies.model_dump(mode="json", exclude_none=True), "yaml")
    return DONE


def _named_by(digest: str, state_dir: Path) -> str:
    """The settings with this digest, one field a line, or the names of who was exempt."""
    for text in _texts(digest, state_dir):
        if policy_model.digest(text) == digest:
            return json.dumps(json.loads(text), indent=2) if text.startswith("{") else text.rstrip()
    raise FatalError(
        f"cannot show what {digest} names: no shipped policy has this digest, and {state_dir} has no file for it",
        "run this on the node that signed the receipt or wrote the row",
    )


def _texts(digest: str, state_dir: Path) -> Iterator[str]:
    for name in load.shipped():
        policies = load.load(name)
        yield from (each.model_dump_json() for each in (policies, *map(policies.fenced, FenceMode)))
        for policy in policies.policies:
            yield policy.proof_settings
            yield policy.exempt_names()
    yield _kept(paths.whole_policy(state_dir, digest), digest)
    yield _kept(paths.proof_settings(state_dir, digest), digest)
    yield _kept(paths.exempt_names(state_dir, digest), digest)


def _kept(file: Path, digest: str) -> str:
    try:
        kept = file.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise FatalError(f"cannot show what {digest} names: {file}: {error.strerror}") from error
    if policy_model.digest(kept) != digest:
        raise FatalError(f"cannot show what {digest} names: the kept file {file} was changed")
    return kept


@policy.command(context_settings=ENVIRONMENT)
@options.gpu
@click.option(
    "--policy",
    metavar="FILE",
    show_default=False,
    allow_from_autoenv=False,  # the service's own policy is not asked for
    shell_complete=options.complete_policies,
    help="A policy file or the name of a shipped policy, not from the environment  [default: the policy in force].",
)
@options.output("text", "json", "yaml")
@options.run_dir
def which(gpu: str, policy: str | None, output: str, run_dir: Path) -> None:
    """Say which rule applies to a GPU in the running service, and why.

    With --policy, say which rule of that policy would apply: nothing is loaded.
    """
    asked = load.load(policy) if policy is not None else None
    explanation = service_call.ask(run_dir, lambda admin: admin.explain(gpu))
    device, rule, reason = explanation.device, explanation.device.policy_rule, explanation.policy_why
    if asked is not None:
        subject = match.Subject(device.device, device.index, device.model, device.mig, device.resource)
        matched = match.resolve(asked, subject)
        rule, reason = f"{asked.name}/{matched.rule}", matched.why
    if output == "text":
        human.say(f"GPU {device.name} ({device.device}): {reason}")
        return
    why = {"rule": rule, "why": reason}
    document.emit(document.single("PolicyMatch", document.gpu(device) | why), output)


@policy.command("schema", context_settings=ENVIRONMENT)
def show_schema() -> None:
    """Print the JSON Schema of policy files, for editors."""
    click.echo(load.schema(), nl=False)
