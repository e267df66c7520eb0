"""The manual: what ``--help`` says, as a page for readers of docs/ and as a page for ``man``.

``python -m deploy.manual docs/cli.md`` writes it into the first one. ``python -m deploy.manual man`` prints the other
one, which is made with the wheel.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from autoclave import cli
from autoclave.cli.output import document

WIDTH = 80
PROGRAMS = ("scrubber", "plugin", "dra")  # whose flags stand in units and manifests, which are read without a shell
PAGE = "autoclave.1"  # for man
_USERS_HEAD = """\
## Who gives which flag, and when

Everybody else leaves the flag out. Not each reason comes from a user: some are our own judgement.

| flag | of | who gives it, and when |
|---|---|---|"""
# Who gives each flag of these programs, and when.
USERS = {
    "--backend": "drills and trials: `simulated`, which no node gets on its own",
    "--policy": "security, SRE: any policy but `default`",
    "--state-dir": "platform: the ledger on another disk; ordinary user: the default belongs to root",
    "--run-dir": "platform: pods that share another directory; ordinary user: the default belongs to root",
    "--kubelet-dir": "platform: a kubelet with another root directory, such as of k0s or MicroK8s",
    "--pod-logs-dir": "platform: a kubelet with another `podLogsDir`",
    "--operator-namespace": "platform: the operator is in another namespace, and the policy is a shipped one",
    "--fence": "security: everybody is refused; SRE: nobody is, without a policy of your own",
    "--exempt-unit": "SRE: a monitor on the host, and the policy is a shipped one",
    "--host-root": "platform: the service is in a container",
    "--sight": "platform: a trial on a node that is a container itself, such as a node of kind",
    "--cgroup-root": "SRE: a trial of the fence that touches no other program of the machine",
    "--evidence-rows": "auditor: more; SRE: a small disk",
    "--evidence-age": "auditor: more; data protection: less",
    "--simulated-dir": "drills: their memory on a file system in memory",
    "--simulated-gpus": "drills: a node like your own",
    "--simulated-memory": "drills: scrubs that take long enough to be seen",
    "--simulated-cdi-dir": "platform: pods with simulated GPUs, before real ones arrive",
    "--standby": "platform: updates without a pause, by a DaemonSet with `maxSurge`",
    "--node-name": "platform: the name is not the host's, and no manifest sets NODE_NAME",
    "--metrics-address": "SRE: Prometheus, and probes of the kubelet",
    "--log-level": "SRE: `debug` for a report to us; `warning` where each line costs",
    "--log-format": "SRE: `console` where people read the log, such as by `kubectl logs`",
    "--config": "without Kubernetes: one file under configuration management",
    "--resource-prefix": "platform: names beside those of another device plugin",
    "--strategy": "platform: a runtime without CDI, or NVIDIA's own runtime",
    "--cdi-kind": "platform: specifications of another kind, which name GPUs by UUID",
    "--pass-device-specs": "platform: a runtime without CDI; a kubelet with a static CPU manager",
    "--driver-root": "platform: the driver is in a container",
    "--mig-strategy": "platform: nodes with MIG",
    "--cluster-reports": "platform: no rights in the cluster (`off`), or a failed start without them (`on`)",
    "--checkpoint-annotation": "auditor: a witness of the ledger outside the node",
    "--nvsentinel-socket": "SRE: nodes with NVSentinel",
    "--nvsentinel-action": "SRE: NVSentinel repairs nodes on its own",
    "--vendor-dir": "platform: the vendor's device plugin stays",
    "--cdi-dir": "platform: a runtime with other directories, or a program in a container",
    "--vendor-variable": "platform: a vendor's plugin with a variable that we do not know",
    "--driver-name": "platform: a name that the classes of the cluster already have",
    "--vendor-registry-dir": "platform: the vendor's DRA driver stays",
    "--taint-rules": "SRE: no pod waits for a quarantined GPU of the vendor's driver",
    "--plugins-dir": "platform: a kubelet with another root directory, such as of k0s or MicroK8s",
    "--registry-dir": "platform: the same",
    "--clean-within": "SRE: `paths.new_tenant: slow`, whose scrubs take longer; 0: the next pod waits, not the end",
}
_MADE = re.compile(r"(<!-- made by `make docs`: begin -->\n).*(<!-- made by `make docs`: end -->)", re.DOTALL)


def with_commands(page: str) -> str:
    """The page for readers, with what ``--help`` says now."""
    return _MADE.sub(lambda found: f"{found[1]}\n{text()}\n{found[2]}", page)


def text() -> str:
    """The part of that page that is made."""
    root, *verbs = commands()
    programs = [verb for verb in verbs if verb.info_name in PROGRAMS]
    contract = inspect.cleandoc(document.__doc__ or "").replace("``", "`")
    sections = (_section(ctx) for ctx in (root, *programs))
    return "\n".join([*sections, _users(programs), f"## For programs\n\n{contract}\n"])


def flags(programs: Iterable[click.Context]) -> dict[str, list[str]]:
    """Each flag of the programs, with the names of those that have it."""
    having: dict[str, list[str]] = {}
    for ctx in programs:
        for param in ctx.command.params:
            having.setdefault(param.opts[0], []).append(str(ctx.info_name))
    return having


def _users(programs: Iterable[click.Context]) -> str:
    """The table of these flags."""
    rows = (f"| `{flag}` | {', '.join(having)} | {USERS[flag]} |" for flag, having in flags(programs).items())
    return "\n".join((_USERS_HEAD, *rows, ""))


def man() -> str:
    """The same and all other verbs, in the language of ``man``."""
    root, *verbs = commands()
    lines = [
        '.TH AUTOCLAVE 1 "" Autoclave',
        *(".SH NAME", f"autoclave \\- {(root.command.help or '').rstrip('.')}"),
        *(".SH SYNOPSIS", _synopsis(root)),
        *(".SH DESCRIPTION", *_paragraphs(root.command.epilog or "")),
        *(".SH OPTIONS", *_options(root)),
    ]
    for verb in verbs:
        lines += [f".SH {_plain(verb.command_path)}", _synopsis(verb), ".PP", *_paragraphs(verb.command.help or "")]
        lines += _options(verb)
    return "\n".join(lines) + "\n"


def _synopsis(ctx: click.Context) -> str:
    return f"\\fB{_plain(ctx.command_path)}\\fR {_plain(' '.join(ctx.command.collect_usage_pieces(ctx)))}"


def _paragraphs(text: str) -> list[str]:
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n.PP\n".join(_plain(" ".join(paragraph.split())) for paragraph in paragraphs).split("\n")


def _options(ctx: click.Context) -> list[str]:
    """What each flag does; ``--help`` is said once."""
    lines = []
    for param in ctx.command.get_params(ctx):
        names, about = param.get_help_record(ctx) or ("", "")
        if about and (ctx.parent is None or param.name != "help"):
            lines += [".TP", f"\\fB{_plain(names)}\\fR", _plain(about)]
    return lines


def _plain(text: str) -> str:
    """A text that means nothing to ``man`` but itself."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def commands() -> Iterator[click.Context]:
    """The command and its verbs, each before the verbs below it."""
    root = click.Context(cli.cli, info_name="autoclave", terminal_width=WIDTH, **cli.cli.context_settings)
    yield from _with_verbs(root)


def _with_verbs(ctx: click.Context) -> Iterator[click.Context]:
    yield ctx
    if isinstance(ctx.command, click.Group):
        for name in ctx.command.list_commands(ctx):
            verb = ctx.command.get_command(ctx, name)
            if verb is not None:
                yield from _with_verbs(click.Context(verb, parent=ctx, info_name=name))


def _section(ctx: click.Context) -> str:
    # Trailing spaces are click's, where a verb of the list needs a second line.
    usage = "\n".join(line.rstrip() for line in ctx.get_help().splitlines())
    return f"## {ctx.command_path}\n\n```text\n{usage}\n```\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["man"]:
        click.echo(man(), nl=False)
    else:
        place = Path(sys.argv[1])
        place.write_text(with_commands(place.read_text(encoding="utf-8")), encoding="utf-8")
