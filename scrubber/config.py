"""The configuration of the service: ``autoclave scrubber`` makes it from its flags, the environment and a file."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ground import paths
from policies.values import FenceMode


class BackendChoice(Enum):
    """Which hardware the service works on."""

    AUTO = "auto"
    NVIDIA = "nvidia"
    SIMULATED = "simulated"


class SightMode(Enum):
    """Which processes must be visible before a device counts as free."""

    HOST = "host"
    NAMESPACE = "namespace"


@dataclass(frozen=True, slots=True)
class ScrubberConfig:
    """All settings of ``autoclave scrubber``. All paths are absolute."""

    backend: BackendChoice = BackendChoice.AUTO
    """Which hardware to use; auto uses what the node has."""

    policy: str = "default"
    """The name of a shipped policy, or a file."""

    state_dir: Path = Path(paths.STATE_DIR)
    """Where the ledger lives; it must survive a restart."""

    run_dir: Path = Path(paths.RUN_DIR)
    """Where the sockets are; only this user has access."""

    kubelet_dir: Path = Path(paths.KUBELET_DIR)
    """Where the kubelet keeps its socket and its checkpoint."""

    pod_logs_dir: Path = Path(paths.POD_LOGS_DIR)
    """Where the kubelet keeps the logs of pods on the host (its podLogsDir): names pods, and bystanders in pods."""

    host_root: Path = Path("/")
    """Where the host's /dev, /proc/driver, /run, /sys and /var are mounted; / if not elsewhere."""

    sight: SightMode = SightMode.HOST
    """Where all processes of the node are visible: host, or namespace for a node that is itself a container."""

    evidence_rows: int = 240_000
    """How many events outlive the steps of scrubs: those of about 40,000 uses of a GPU, in about 140 MiB."""

    evidence_age: float = 400 * 86_400.0
    """For how many seconds they are kept: a year, and a month to look at it."""

    simulated_dir: Path | None = None
    """Where simulated GPUs are stored; None: in the state directory."""

    simulated_gpus: int = 2
    """How many simulated GPUs there are."""

    simulated_memory: int = 64 * 2**20
    """How many bytes of memory a new simulated GPU has."""

    simulated_cdi_dir: Path | None = None
    """Where to write a CDI specification of the simulated GPUs, so that pods can open them; nowhere if not given."""

    metrics_address: str = ""
    """Where to serve /metrics, /healthz and /readyz, as HOST:PORT; nowhere when empty."""

    log_level: str = "info"
    """The lowest level that is logged."""

    log_format: str = "auto"
    """The format of log lines; auto is console on a terminal and json elsewhere."""

    operator_namespace: tuple[str, ...] = ()
    """Namespaces of NVIDIA's operator and drivers, beside those of the policy."""

    fence: FenceMode | None = None
    """Who the fence keeps off a GPU, instead of what the policy says; None: as the policy says."""

    exempt_unit: tuple[str, ...] = ()
    """Units of systemd that the fence exempts, beside those of the policy."""

    standby: bool = False
    """Wait for the end of another service in the run directory, instead of an error."""

    node_name: str = ""
    """The name of this node in signed checkpoints; its host name when empty."""

    cgroup_root: Path | None = None
    """The control group of version 2 below which the fence stands; None: the root of all groups of the node."""

    @property
    def simulation(self) -> Path:
        """The directory of the simulated GPUs."""
        return self.simulated_dir or self.state_dir / "simulated"

    @property
    def pod_logs(self) -> Path:
        """The directory of the pod logs, as this process sees it."""
        return self.host_root.joinpath(*self.pod_logs_dir.parts[1:])
