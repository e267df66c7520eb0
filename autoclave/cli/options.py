"""Flags of several verbs (GPU, output, owner, policy, paths): their types, how words are converted and completed."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from autoclave.cli import Parsed
from ground import paths
from ground.errors import AutoclaveError
from plugin.cluster.report_choice import NvsentinelAction

P = ParamSpec("P")
R = TypeVar("R")

_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")
PATIENCE = 0.5  # seconds that a person at the prompt waits at most for the names of GPUs
DIRECTORY = click.Path(file_okay=False, readable=False, path_type=Path)


class IntRange(click.IntRange):
    """An integer. Click's own type calls itself "integer range" in help texts and errors."""

    name = "integer"


class AbsolutePath(click.Path):
    """A path that is not empty; a relative one means the working directory.

    A manifest with an unset variable passes an empty path, which would mean "here".
    """

    def __init__(self) -> None:
        super().__init__(path_type=Path, readable=False)  # its use tells; a default may belong to another user

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's own
        """The path, or a usage error."""
        if value == "" or "\0" in str(value):
            self.fail(f"the value {'is empty' if value == '' else 'has a null byte'}, expected a path", param, ctx)
        return Path(str(super().convert(value, param, ctx))).absolute()


class Words(click.Choice[str]):
    """One of the words of an enum, as its member."""

    def __init__(self, words: type[Enum]) -> None:
        super().__init__([word.value for word in words])
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's own
        """The member, or a usage error."""
        return self._words(super().convert(value, param, ctx))


def output(*choices: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The flag ``-o``. The first choice is the default."""
    return click.option("-o", "--output", type=click.Choice(choices), default=choices[0], help="Output format.")


def _owner(text: str) -> str:
    """An owner. A blank one is an unset variable of a script: as no owner at all, it would release any job's GPU."""
    if not text.strip():
        raise ValueError("who the GPUs are for, such as a job id")
    return text


def owner(about: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The flag ``--owner``; None where it is not given."""
    return click.option("--owner", type=Parsed("text", _owner), help=about)


def complete_gpus(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Indices and UUIDs of GPUs that start with the typed text; none when the service does not answer quickly.

    Also the newest receipts, where one can be named.
    """
    service_call = importlib.import_module("autoclave.cli.service_call")  # late: parsing flags needs no connection
    run_dir = Path(ctx.params.get("run_dir") or paths.RUN_DIR)
    try:
        status = service_call.ask_now(run_dir, lambda admin: admin.status(timeout=PATIENCE))
    except AutoclaveError:
        return []
    names = {name: device for device in status.devices for name in (device.argument, device.device)}
    if param.name == "receipt":  # an id is as good
        names |= {device.receipt.id: device for device in status.devices if device.receipt is not None}
    return [
        CompletionItem(name, help=f"{device.state} {device.model}")
        for name, device in names.items()
        if name.startswith(incomplete)
    ]


class _All(tuple[str, ...]):
    """No names, because the word ``all`` stands for them."""

    __slots__ = ()


ALL = _All()
MOST = 4096  # GPUs of a range, so that a slip of the finger asks for no million of them


def _each_gpu(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """The names of GPUs, also of a list with commas and ranges such as ``0,2-4``; ``ALL`` for the word ``all``."""
    words = re.split("[,\0]", re.sub(",\0|\0,", ",", "\0".join(given))) if given else []  # 0, 1 is two arguments
    if "" in words:
        raise click.BadParameter(f"found {','.join(given)!r}, expected a name before and after each comma", ctx, param)
    if words == ["all"]:
        return ALL
    if "all" in words:
        raise click.BadParameter("found 'all' beside other names, expected only 'all'", ctx, param)
    names: list[str] = []
    for word in words:
        if (ends := _RANGE.fullmatch(word)) is None:
            names.append(word)
        elif not 0 <= (last := int(ends[2])) - (first := int(ends[1])) < MOST:
            raise click.BadParameter(f"found the range {word!r}, expected the smaller number first", ctx, param)
        else:
            names += map(str, range(first, last + 1))
    return tuple(dict.fromkeys(names))


def _one_gpu(ctx: click.Context, param: click.Parameter, given: str) -> str:
    """The name of one GPU; empty for every GPU, where the argument may be left out."""
    names = _each_gpu(ctx, param, (given,)) if given else ("",)
    if names is ALL and not param.required:
        return ""
    if len(names) != 1:
        raise click.BadParameter(f"found {given!r}, expected one GPU: run the command once for each", ctx, param)
    return names[0]


def complete_policies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of shipped policies for the shell; files where no name fits."""
    del ctx, param
    names = importlib.import_module("policies.load").shipped()
    # Files first: the script for bash forgets what came before them.
    return [
        CompletionItem(incomplete, type="file"),
        *(CompletionItem(name) for name in names if name.startswith(incomplete)),
    ]


def _read_file(ctx: click.Context, param: click.Parameter, file: Path | None) -> None:
    """Make the values of the file the defaults. The environment and flags override them."""
    del param
    if file is not None:
        ctx.default_map = importlib.import_module("autoclave.cli.config_file").load(file, ctx)


def _address(text: str) -> str:
    if text:
        importlib.import_module("ground.http_server").parse(text)  # late: the other verbs need no server
    return text


PATH = AbsolutePath()


def path(flag: str, default: object, about: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A flag that takes a path."""
    return click.option(flag, type=PATH, default=default, help=about)


# Of the programs that run until a signal stops them.
cdi_dir = click.option(
    "--cdi-dir",
    type=PATH,
    multiple=True,
    default=paths.CDI_DIRS,
    help="A directory with CDI specifications of the vendor; may be repeated.",
)
cdi_kind = click.option(
    "--cdi-kind", default="nvidia.com/gpu", metavar="VENDOR/CLASS", help="The kind in CDI device names."
)
nvsentinel_socket = path(
    "--nvsentinel-socket", None, "Report quarantines and recoveries to NVSentinel's platform connector at this socket."
)
cgroup_root = click.option(
    "--cgroup-root",
    type=PATH,
    show_default="the root of the node",
    help="The control group of version 2 below which the fence stands: it does not see processes outside. For trials.",
)
service_dir = path("--run-dir", paths.RUN_DIR, "Directory with the sockets of the scrub service.")
metrics_address = click.option(
    "--metrics-address",
    type=Parsed("text", _address),
    default="",
    show_default=False,
    metavar="HOST:PORT",
    help="Address for /metrics, /healthz and /readyz  [default: none].",
)
log_level = click.option(
    "--log-level", type=click.Choice(("debug", "info", "warning", "error")), default="info",
    help="The lowest level to log.",
)  # fmt: skip
log_format = click.option(
    "--log-format",
    type=click.Choice(("auto", "console", "json")),
    default="auto",
    help="Format of log lines; auto is console on a terminal, json elsewhere.",
)
file = click.option(
    "--config", "file", envvar="AUTOCLAVE_CONFIG", metavar="FILE", type=PATH, is_eager=True, expose_value=False,
    callback=_read_file, help="A YAML file with any of these flags as keys; the environment and flags override it.",
)  # fmt: skip

every = click.option("--all", "every", is_flag=True, envvar="AUTOCLAVE_ALL", help="All GPUs of this node.")
quiet = click.option("-q", "--quiet", is_flag=True, help="No progress on the terminal; elsewhere there is none.")
run_dir = click.option(
    "--run-dir", type=DIRECTORY, default=paths.RUN_DIR, help="Directory with the sockets of the service."
)
_READABLE = click.Path(exists=True, dir_okay=False, path_type=Path)
checkpoints = click.option(
    "--checkpoint", "checkpoints", type=_READABLE, multiple=True, metavar="FILE", envvar="AUTOCLAVE_CHECKPOINT",
    help="A signed checkpoint, or lines of the service's log; may be repeated.",
)  # fmt: skip
keys = click.option(
    "--key", "keys", type=_READABLE, multiple=True, metavar="FILE", envvar="AUTOCLAVE_KEY",
    show_default="the key in --state-dir", help="A public key that may have signed them; may be repeated.",
)  # fmt: skip
state_dir = click.option("--state-dir", type=DIRECTORY, default=paths.STATE_DIR, help="Directory with the ledger.")


def typed(*names: str) -> bool:
    """Whether the user has typed one of these flags; their variables may be set for other verbs."""
    source = click.get_current_context().get_parameter_source
    return any(source(name) is ParameterSource.COMMANDLINE for name in names)


def names_a_copy() -> bool:
    """Whether the user wants the ledger in --state-dir, and no service: only that flag was typed, and not --run-dir."""
    return typed("state_dir") and not typed("run_dir")


gpu = click.argument("gpu", shell_complete=complete_gpus, callback=_one_gpu)
one_or_every_gpu = click.argument("gpu", required=False, default="", shell_complete=complete_gpus, callback=_one_gpu)
gpus = click.argument("gpus", nargs=-1, metavar="[GPU]...", shell_complete=complete_gpus, callback=_each_gpu)
needed_gpus = click.argument(
    "gpus", nargs=-1, required=True, metavar="GPU...", shell_complete=complete_gpus, callback=_each_gpu
)

nvsentinel_action = click.option(
    "--nvsentinel-action",
    type=Words(NvsentinelAction),
    default="none",
    help="With `remediate`, NVSentinel may cordon, drain and repair the node of a quarantined device.",
)
node_name = click.option(
    "--node-name",
    envvar=["AUTOCLAVE_NODE_NAME", "NODE_NAME"],
    default="",
    show_default=False,
    metavar="NAME",
    help="Name of this node in the cluster; NODE_NAME is read too.",
)
