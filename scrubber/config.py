"""How the service was asked to run: defaults, then the file, then the environment, then flags; later ones win.

Every value knows where it came from, and a wrong one is refused in the words of the place where it can be mended.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, PlainValidator, model_validator

from policies import faults, tree, validation
from policies.base import Model, Size, Word, impossible
from scrubber.ground import http_server, paths, unix_sockets
from scrubber.ground.errors import FatalError

PREFIX = "AUTOCLAVE_"
MOST_DEVICES = 256  # what one request may name
LEAST_MEMORY, MOST_MEMORY = 4096, 2**40


class BackendChoice(Word):
    """Which hardware the service works on."""

    AUTO = "auto"
    NVIDIA = "nvidia"
    SIMULATED = "simulated"


class SightMode(Word):
    """Who must be seen before nobody is said to be on a device."""

    HOST = "host"
    NAMESPACE = "namespace"


class LogLevel(Word):
    """The least that is worth a line."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(Word):
    """How a line is written; ``auto`` is ``console`` on a terminal and ``json`` elsewhere."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


def check_path(value: object) -> Path:
    """A path that means the same wherever the service is started."""
    if isinstance(value, str | Path) and Path(value).is_absolute() and "\0" not in str(value):
        return Path(value)
    raise ValueError("expected an absolute path such as /run/autoclave")


Absolute = Annotated[Path, PlainValidator(check_path)]


def check_address(value: object) -> str:
    """Where to listen, or nothing."""
    if not isinstance(value, str):
        raise ValueError("expected HOST:PORT such as 127.0.0.1:9475")  # noqa: TRY004 - pydantic wants this one
    if value:
        http_server.parse(value)
    return value


class ScrubberConfig(Model):
    """Everything ``autoclave scrubber`` can be told."""

    backend: BackendChoice = BackendChoice.AUTO
    """Which hardware to work on; auto takes what the node has."""

    policy: Annotated[str, Field(min_length=1)] = "default"
    """The name of a shipped policy, or a file."""

    state_dir: Absolute = Path(paths.STATE_DIR)
    """Where the ledger lives; it must survive a restart."""

    run_dir: Absolute = Path(paths.RUN_DIR)
    """Where the sockets are made; entered by this user only."""

    kubelet_dir: Absolute = Path(paths.KUBELET_DIR)
    """Where the kubelet keeps its socket and its checkpoint."""

    pod_logs_dir: Absolute = Path(paths.POD_LOGS_DIR)
    """Where the kubelet keeps the logs of pods on the host (its podLogsDir): tells pods, and bystanders in pods."""

    host_root: Absolute = Path("/")
    """Where the host's /dev, /proc/driver, /run, /sys and /var are seen; / unless they are mounted elsewhere."""

    sight: SightMode = SightMode.HOST
    """Whose processes are all there are: the machine's, or for a node that is a container itself its namespace's."""

    simulated_dir: Absolute = Path(paths.STATE_DIR, "simulated")
    """Where simulated GPUs live; the directory simulated in the state directory when not given."""

    simulated_gpus: Annotated[int, Field(ge=1, le=MOST_DEVICES)] = 2
    """How many simulated GPUs there are."""

    simulated_memory: Size = 64 * 2**20
    """How much memory a new simulated GPU has."""

    metrics_address: Annotated[str, PlainValidator(check_address)] = ""
    """Where /metrics, /healthz and /readyz are shown, as HOST:PORT; nowhere when empty."""

    log_level: LogLevel = LogLevel.INFO
    """The least that is worth a line."""

    log_format: LogFormat = LogFormat.AUTO
    """How log lines are written; auto is console on a terminal and json elsewhere."""

    @model_validator(mode="before")
    @classmethod
    def simulated_beside_the_state(cls, data: Any) -> Any:  # noqa: ANN401 - nothing is known of it yet
        """Who moves the state moves the simulated GPUs too, unless a place was named for them."""
        match data:
            case {"simulated_dir": _}:
                return data
            case {"state_dir": str() | Path() as state} if Path(state).is_absolute():
                return {**data, "simulated_dir": str(Path(state, "simulated"))}
        return data

    @property
    def socket(self) -> Path:
        """The door for whoever hands devices out."""
        return paths.socket(self.run_dir)

    @property
    def admin_socket(self) -> Path:
        """The door for operators."""
        return paths.admin_socket(self.run_dir)

    @property
    def pod_logs(self) -> Path:
        """Where the logs of pods are seen from here."""
        return self.host_root.joinpath(*self.pod_logs_dir.parts[1:])

    @property
    def ledger(self) -> Path:
        """The file that everything is remembered in."""
        return paths.ledger(self.state_dir)

    @model_validator(mode="after")
    def sockets_fit(self) -> Self:
        """The kernel cuts no path short: it refuses, later and in worse words."""
        length = len(os.fsencode(self.socket))
        if length > unix_sockets.LONGEST:
            expected = f"one that leaves room for scrubber.sock in the {unix_sockets.LONGEST} bytes of a socket's path"
            raise impossible(f"a path too long by {length - unix_sockets.LONGEST} bytes", expected, "run_dir")
        return self

    @model_validator(mode="after")
    def memory_is_a_memory(self) -> Self:
        """Bounds of the simulation, not of any hardware."""
        if not LEAST_MEMORY <= self.simulated_memory <= MOST_MEMORY:
            raise impossible(f"{self.simulated_memory} bytes", "between 4KiB and 1TiB", "simulated_memory")
        return self


@dataclass(frozen=True, slots=True)
class Resolved:
    """A configuration, and for each value the place it came from."""

    config: ScrubberConfig
    origins: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Given:
    value: object
    origin: str


def resolve(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> Resolved:
    """The configuration in force, or FatalError with everything that is wrong; flags that are None were not given."""
    given = dict(_from_file(file)) if file is not None else {}
    given.update(_from_environment(environ))
    given.update(_from_flags(flags))
    data = {name: it.value for name, it in given.items()}
    if problems := validation.problems(ScrubberConfig, data):
        raise FatalError(f"cannot use {'; '.join(_told(problem, given) for problem in problems)}")
    origins = {name: given[name].origin if name in given else "default" for name in ScrubberConfig.model_fields}
    return Resolved(validation.build(ScrubberConfig, data), origins)


def _told(problem: validation.Problem, given: Mapping[str, _Given]) -> str:
    name = str(problem.places[0][0])
    origin = given[name].origin if name in given else f"the default of {name}"
    return f"{origin}: found {problem.found}, expected {problem.expected}"


def _from_flags(flags: Mapping[str, object]) -> Iterator[tuple[str, _Given]]:
    for name, value in flags.items():
        if value is not None:
            yield name, _Given(_placed(name, value), f"--{name.replace('_', '-')}")


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, _Given]]:
    for name in ScrubberConfig.model_fields:
        variable = PREFIX + name.upper()
        if text := environ.get(variable):  # empty means not given, as a shell script would have it
            value: object = int(text) if name == "simulated_gpus" and text.isdecimal() else text
            yield name, _Given(_placed(name, value), variable)


def _placed(name: str, value: object) -> object:
    """Where somebody types a path, the working directory is known; in a file it is not."""
    if ScrubberConfig.model_fields[name].annotation is Path and isinstance(value, str):
        return str(Path(value).absolute())
    return value


def _from_file(file: Path) -> Iterator[tuple[str, _Given]]:
    try:
        root, wrong = _snaked(*tree.parse(_text(file), str(file)), str(file))
    except faults.PolicyError as error:
        raise _unusable(file, error.faults) from error
    problems = [it for it in validation.problems(ScrubberConfig, root.plain()) if not _without_value(root, it.loc)]
    if wrong or problems:
        raise _unusable(file, (*wrong, *(_fault(str(file), root, problem) for problem in problems)))
    for name, node in _mapping(root).items():
        yield name, _Given(node.plain(), f"{file}:{node.place.line}:{node.place.column}")


def _unusable(file: Path, wrong: tuple[faults.PolicyFault, ...]) -> FatalError:
    lines = sorted(wrong, key=lambda fault: (fault.line, fault.column))
    return FatalError("\n".join([f"cannot use the configuration {file}: mend what stands here", *map(str, lines)]))


def _without_value(root: tree.YamlNode, loc: faults.Loc) -> bool:
    """A key without a value was told by the tree already."""
    node = root.find(loc)
    return node is not None and node.value is None


def _text(file: Path) -> str:
    try:
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise FatalError(f"cannot read the configuration {file}: {why}; name another with --config") from error
    blank = all(not line.split("#")[0].strip() for line in text.splitlines())
    return "{}" if blank else text  # a file with everything commented out is all defaults


def _snaked(
    root: tree.YamlNode, wrong: tuple[faults.PolicyFault, ...], source: str
) -> tuple[tree.YamlNode, tuple[faults.PolicyFault, ...]]:
    """The same tree with state-dir and state_dir as one key; both at once is a fault."""
    mapping: dict[str, tree.YamlNode] = {}
    for key, node in _mapping(root).items():
        name = key.replace("-", "_")
        if name in mapping:
            place, first = node.key, mapping[name].key.line
            found = f"a duplicate key (first on line {first})"
            wrong = (*wrong, faults.PolicyFault(source, place.line, place.column, key, found, "each key once"))
        mapping.setdefault(name, node)
    return (tree.YamlNode(mapping, root.place, root.key) if isinstance(root.value, dict) else root), wrong


def _mapping(root: tree.YamlNode) -> Mapping[str, tree.YamlNode]:
    return root.value if isinstance(root.value, dict) else {}


def _fault(source: str, root: tree.YamlNode, problem: validation.Problem) -> faults.PolicyFault:
    loc = problem.places[0]
    node = root.nearest(loc)
    place = node.key if problem.at_key else node.place
    return faults.PolicyFault(source, place.line, place.column, faults.path(loc), problem.found, problem.expected)
