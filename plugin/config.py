"""How the plugin was asked to run, and whether that can work: each thing to mend is one line that names its flag."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from plugin import response
from plugin.cluster import credentials
from plugin.cluster.credentials import Reports
from plugin.devices import MigStrategy
from plugin.registration import sockets
from scrubber.ground import http_server
from scrubber.ground.errors import FatalError

KUBELET_DIR = "/var/lib/kubelet/device-plugins"
REGISTRY_DIR = "/var/lib/kubelet/plugins_registry"
RUN_DIR = "/run/autoclave"
PREFIX = "nvidia.com"

LONGEST_PREFIX = 244  # characters: the kubelet puts "requests." before it and allows 253
DOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


class Way(Enum):
    """How the kubelet learns that there is a plugin: it is told, or it finds a socket."""

    KUBELET = "kubelet"
    REGISTRY = "plugins-registry"


@dataclass(frozen=True, slots=True)
class Config:
    """Everything ``autoclave plugin`` can be told."""

    kubelet_dir: Path = Path(KUBELET_DIR)
    run_dir: Path = Path(RUN_DIR)
    resource_prefix: str = PREFIX
    strategies: tuple[response.Strategy, ...] = (response.Strategy.CDI_CRI,)
    cdi_kind: str = "nvidia.com/gpu"
    pass_device_specs: bool = False
    driver_root: Path = Path("/")
    mig_strategy: MigStrategy = MigStrategy.NONE
    registration: Way = Way.KUBELET
    registry_dir: Path = Path(REGISTRY_DIR)
    cluster_reports: Reports = Reports.AUTO
    node_name: str = ""
    taint_when_all_out: bool = False
    service_account: Path = credentials.SERVICE_ACCOUNT  # no flag: Kubernetes puts it there
    metrics_address: str = ""
    version: str = ""  # no flag: the release knows it
    log_level: str = "info"
    log_format: str = "auto"

    @property
    def scrubber_socket(self) -> Path:
        """Where the scrub service answers."""
        return self.run_dir / "scrubber.sock"

    @property
    def cluster(self) -> credentials.ReportChoice:
        """What the cluster is to be told."""
        return credentials.ReportChoice(
            self.cluster_reports, self.node_name, self.taint_when_all_out, self.service_account
        )

    @property
    def style(self) -> response.Style:
        """How Allocate answers."""
        return response.Style(
            strategies=self.strategies,
            cdi_kind=self.cdi_kind,
            pass_device_specs=self.pass_device_specs,
            dev_root=str(self.driver_root),
        )


def check(config: Config) -> None:
    """Refuse what cannot work. The run directory may be missing: the service makes it, and may start after us."""
    _check_prefix(config.resource_prefix)
    try:
        response.check(config.style)
    except ValueError as error:
        raise FatalError(str(error)) from error
    _check_directory(config.kubelet_dir, "the kubelet directory", "--kubelet-dir")
    if config.registration is Way.REGISTRY:
        _check_directory(config.registry_dir, "the plugin registry", "--registry-dir")
    _check_cluster(config.cluster)
    _check_address(config.metrics_address)
    _check_length(config.scrubber_socket, "--run-dir")
    # Longer names may come; whoever has no room for this one must not wait for them to be told.
    _check_length(config.kubelet_dir / sockets.endpoint(f"{config.resource_prefix}/gpu"), "--kubelet-dir")


def _check_prefix(prefix: str) -> None:
    """The kubelet's rules for the names of extended resources, told before the kubelet refuses ours."""
    wrong = ""
    if len(prefix) > LONGEST_PREFIX:
        wrong = f"it is longer than {LONGEST_PREFIX} characters"
    elif DOMAIN.fullmatch(prefix) is None:
        wrong = "it is no lower-case domain name"
    elif prefix.endswith("kubernetes.io"):
        wrong = "Kubernetes keeps names that end in kubernetes.io for itself"
    elif prefix.startswith("requests."):
        wrong = "Kubernetes keeps names that begin with requests. for itself"
    if wrong:
        raise FatalError(f"cannot use --resource-prefix {prefix!r}: {wrong}; give a domain such as {PREFIX}")


def _check_cluster(asked: credentials.ReportChoice) -> None:
    if asked.reports is Reports.OFF:
        if asked.taint:
            raise FatalError(
                "cannot use --taint-when-all-out with --cluster-reports off: the one is a part of the other"
            )
        return
    if asked.reports is Reports.ON and (why := credentials.lacking(asked, os.environ)):
        raise FatalError(f"cannot report to the cluster: {why}; or set --cluster-reports off")


def _check_address(address: str) -> None:
    if not address:
        return
    try:
        http_server.parse(address)
    except ValueError as error:
        raise FatalError(f"cannot use --metrics-address {address!r}: {error}") from error


def _check_directory(path: Path, what: str, flag: str) -> None:
    try:
        why = "" if stat.S_ISDIR(path.stat().st_mode) else "it is no directory"
    except OSError as error:
        why = (error.strerror or str(error)).lower()
    if why:
        raise FatalError(f"cannot use {what} {path}: {why}; give the kubelet's with {flag}")


def _check_length(path: Path, flag: str) -> None:
    length = len(os.fsencode(path))
    if length > sockets.LONGEST:
        raise FatalError(
            f"cannot use socket path {path}: it is {length} bytes long and the kernel takes {sockets.LONGEST}; "
            f"give a shorter {flag}"
        )
