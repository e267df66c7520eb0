"""The configuration of the service: defaults, file, environment, flags. A later source overrides an earlier one.

Every value has an origin, and an error names the origin of the wrong value.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, PlainValidator, model_validator

from policies.base import Model, Size, Word, impossible
from scrubber.ground import http_server, paths, request_limits, unix_sockets
from scrubber.ground.documents import config_file, validation
from scrubber.ground.documents.faults import DocumentFault
from scrubber.ground.documents.tree import YamlNode
from scrubber.ground.errors import FatalError

PREFIX = "AUTOCLAVE_"
MIN_MEMORY, MAX_MEMORY = 4096, 2**40


class BackendChoice(Word):
    """Which hardware the service works on."""

    AUTO = "auto"
    NVIDIA = "nvidia"
    SIMULATED = "simulated"


class SightMode(Word):
    """Which processes must be visible before a device counts as free."""

    HOST = "host"
    NAMESPACE = "namespace"


class LogLevel(Word):
    """The lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(Word):
    """The format of log lines; ``auto`` is ``console`` on a terminal and ``json`` elsewhere."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


def check_path(value: object) -> Path:
    """The absolute path; ValueError for any other value."""
    if isinstance(value, str | Path) and Path(value).is_absolute() and "\0" not in str(value):
        return Path(value)
    raise ValueError("expected an absolute path such as /run/autoclave")


def check_optional_path(value: object) -> Path | None:
    """An absolute path or None; ValueError for any other value."""
    return None if value is None else check_path(value)


Absolute = Annotated[Path, PlainValidator(check_path)]
OptionalAbsolute = Annotated[Path | None, PlainValidator(check_optional_path)]


def check_address(value: object) -> str:
    """The address to listen on, or an empty string; ValueError for any other value."""
    if not isinstance(value, str):
        raise ValueError("expected HOST:PORT such as 127.0.0.1:9475")  # noqa: TRY004 - pydantic expects a ValueError
    if value:
        http_server.parse(value)
    return value


class ScrubberConfig(Model):
    """All settings of ``autoclave scrubber``."""

    backend: BackendChoice = BackendChoice.AUTO
    """Which hardware to use; auto uses what the node has."""

    policy: Annotated[str, Field(min_length=1)] = "default"
    """The name of a shipped policy, or a file."""

    state_dir: Absolute = Path(paths.STATE_DIR)
    """Where the ledger lives; it must survive a restart."""

    run_dir: Absolute = Path(paths.RUN_DIR)
    """Where the sockets are; only this user has access."""

    kubelet_dir: Absolute = Path(paths.KUBELET_DIR)
    """Where the kubelet keeps its socket and its checkpoint."""

    pod_logs_dir: Absolute = Path(paths.POD_LOGS_DIR)
    """Where the kubelet keeps the logs of pods on the host (its podLogsDir): names pods, and bystanders in pods."""

    host_root: Absolute = Path("/")
    """Where the host's /dev, /proc/driver, /run, /sys and /var are mounted; / if not elsewhere."""

    sight: SightMode = SightMode.HOST
    """Where all processes of the node are visible: host, or namespace for a node that is itself a container."""

    simulated_dir: Absolute = Path(paths.STATE_DIR, "simulated")
    """Where simulated GPUs are stored; by default the directory simulated in the state directory."""

    simulated_gpus: Annotated[int, Field(ge=1, le=request_limits.MOST_DEVICES)] = 2
    """How many simulated GPUs there are."""

    simulated_memory: Size = 64 * 2**20
    """How much memory a new simulated GPU has."""

    simulated_cdi_dir: OptionalAbsolute = None
    """Where to write a CDI specification of the simulated GPUs, so that pods can open them; nowhere if not given."""

    metrics_address: Annotated[str, PlainValidator(check_address)] = ""
    """Where to serve /metrics, /healthz and /readyz, as HOST:PORT; nowhere when empty."""

    log_level: LogLevel = LogLevel.INFO
    """The lowest level that is logged."""

    log_format: LogFormat = LogFormat.AUTO
    """The format of log lines; auto is console on a terminal and json elsewhere."""

    @model_validator(mode="before")
    @classmethod
    def simulated_beside_the_state(cls, data: Any) -> Any:  # noqa: ANN401 - not validated yet
        """Put the simulated GPUs into the state directory, unless another directory is given."""
        match data:
            case {"simulated_dir": _}:
                return data
            case {"state_dir": str() | Path() as state} if Path(state).is_absolute():
                return {**data, "simulated_dir": str(Path(state, "simulated"))}
        return data

    @property
    def socket(self) -> Path:
        """The socket for the program that hands devices out."""
        return paths.scrubber_socket(self.run_dir)

    @property
    def admin_socket(self) -> Path:
        """The socket for operators."""
        return paths.admin_socket(self.run_dir)

    @property
    def pod_logs(self) -> Path:
        """The directory of the pod logs, as this process sees it."""
        return self.host_root.joinpath(*self.pod_logs_dir.parts[1:])

    @property
    def ledger_head(self) -> Path:
        """The file outside the state directory that shows whether the ledger is an older copy."""
        return paths.ledger_head(self.run_dir)

    @property
    def ledger(self) -> Path:
        """The file of the ledger."""
        return paths.ledger(self.state_dir)

    @model_validator(mode="after")
    def sockets_fit(self) -> Self:
        """Refuse a run directory whose socket path is too long for the kernel."""
        length = len(os.fsencode(self.socket))
        if length > unix_sockets.MAX_PATH_BYTES:
            expected = (
                f"one that leaves room for scrubber.sock in the {unix_sockets.MAX_PATH_BYTES} bytes of a socket's path"
            )
            raise impossible(f"a path too long by {length - unix_sockets.MAX_PATH_BYTES} bytes", expected, "run_dir")
        return self

    @model_validator(mode="after")
    def memory_in_bounds(self) -> Self:
        """Refuse a memory size that the simulation does not support."""
        if not MIN_MEMORY <= self.simulated_memory <= MAX_MEMORY:
            raise impossible(f"{self.simulated_memory} bytes", "between 4KiB and 1TiB", "simulated_memory")
        return self


@dataclass(frozen=True, slots=True)
class _Given:
    value: object
    origin: str


def resolve(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> ScrubberConfig:
    """The configuration in force; FatalError with all faults. Flags that are None were not given."""
    given = dict(_from_file(file)) if file is not None else {}
    given.update(_from_environment(environ))
    given.update(_from_flags(flags))
    data = {name: it.value for name, it in given.items()}
    if problems := validation.problems(ScrubberConfig, data):
        raise FatalError(f"cannot use {'; '.join(_sentence(problem, given) for problem in problems)}")
    return validation.build(ScrubberConfig, data)


def _sentence(problem: validation.Problem, given: Mapping[str, _Given]) -> str:
    name = str(problem.places[0][0])
    origin = given[name].origin if name in given else f"the default of {name}"
    return f"{origin}: found {problem.found}, expected {problem.expected}"


def _from_flags(flags: Mapping[str, object]) -> Iterator[tuple[str, _Given]]:
    for name, value in flags.items():
        if value is not None:
            yield name, _Given(_absolute(name, value), f"--{name.replace('_', '-')}")


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, _Given]]:
    for name in ScrubberConfig.model_fields:
        variable = PREFIX + name.upper()
        if text := environ.get(variable):  # empty means not given, as in a shell script
            value: object = int(text) if name == "simulated_gpus" and text.isdecimal() else text
            yield name, _Given(_absolute(name, value), variable)


def _absolute(name: str, value: object) -> object:
    """A path from a flag or the environment, relative to the working directory. A path in a file must be absolute."""
    if ScrubberConfig.model_fields[name].annotation in (Path, Path | None) and isinstance(value, str):
        return str(Path(value).absolute())
    return value


def _from_file(file: Path) -> Iterator[tuple[str, _Given]]:
    def check(root: YamlNode) -> Iterator[DocumentFault]:
        for problem in validation.problems(ScrubberConfig, root.plain()):
            yield problem.fault(root, str(file))

    for name, node in config_file.read(file, check).items():
        yield name, _Given(node.plain(), f"{file}:{node.place.line}:{node.place.column}")
