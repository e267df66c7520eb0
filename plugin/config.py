"""The options of the plugin, and their check: one line for each error, with the flag to change."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from ground import paths, unix_sockets
from ground.errors import FatalError
from plugin import response
from plugin.cluster import credentials
from plugin.cluster.report_choice import ReportChoice, Reports
from plugin.devices import MigStrategy
from plugin.registration import sockets
from scrub_api.request_limits import is_subdomain

PREFIX = "nvidia.com"

LONGEST_PREFIX = 244  # characters: the kubelet puts "requests." before it and allows 253


@dataclass(frozen=True, slots=True)
class Config:
    """The options of ``autoclave plugin``."""

    kubelet_dir: Path = Path(paths.KUBELET_DIR)
    run_dir: Path = Path(paths.RUN_DIR)
    resource_prefix: str = PREFIX
    style: response.Style = field(default_factory=response.Style)
    mig_strategy: MigStrategy = MigStrategy.NONE
    cluster: ReportChoice = field(default_factory=ReportChoice)
    vendor_dir: Path | None = None  # a vendor's plugin registers there, and this one stands in front of it
    cdi_dirs: tuple[Path, ...] = tuple(map(Path, paths.CDI_DIRS))
    vendor_variables: tuple[str, ...] = ()  # that an answer of the vendor's plugin may set, whatever they say
    standby: bool = False  # wait for the end of another plugin of this node, instead of an error
    metrics_address: str = ""
    version: str = ""  # no flag: the version of the release
    log_level: str = "info"
    log_format: str = "auto"

    @property
    def scrubber_socket(self) -> Path:
        """The socket of the scrub service."""
        return paths.scrubber_socket(self.run_dir)


def check(config: Config) -> None:
    """Raise a FatalError for options that cannot work.

    The run directory and the kubelet's may be missing: the service and the kubelet make them, perhaps later.
    """
    _check_prefix(config.resource_prefix)
    try:
        response.check(config.style)
    except ValueError as error:
        raise FatalError(str(error)) from error
    check_directory(config.kubelet_dir, "the kubelet directory", "--kubelet-dir")
    if config.vendor_dir is not None:
        _check_vendor(config, config.vendor_dir)
    _check_cluster(config.cluster)
    check_nvsentinel(config.cluster)
    check_length(config.scrubber_socket, "--run-dir")
    # Resources may have longer names. At least the shortest one must fit, and its error is reported at the start.
    check_length(config.kubelet_dir / sockets.endpoint(f"{config.resource_prefix}/gpu"), "--kubelet-dir")


def _check_vendor(config: Config, directory: Path) -> None:
    """Refuse what the vendor's plugin decides, and the kubelet's own directory."""
    if (config.style, config.mig_strategy) != (response.Style(), MigStrategy.NONE):
        raise FatalError(
            "cannot use --strategy, --cdi-kind, --pass-device-specs, --driver-root or --mig-strategy with --vendor-dir:"
            " the vendor's plugin decides them",
            "set them there",
        )
    if directory.resolve() == config.kubelet_dir.resolve():
        raise FatalError(
            f"cannot use --vendor-dir {directory}: it is the kubelet's own directory",
            f"give one below it, such as {config.kubelet_dir}/vendor",
        )
    check_length(directory / ".kubelet.new", "--vendor-dir")


def make_vendor_dir(config: Config) -> None:
    """Make the directory for a vendor's plugin, if the options name one; it is usually below the kubelet's."""
    if (directory := config.vendor_dir) is None:
        return
    try:
        directory.mkdir(mode=sockets.GROUP_MAY_ENTER, exist_ok=True)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise FatalError(f"cannot use --vendor-dir {directory}: {why}", "give a directory that can be made") from error


def _check_prefix(prefix: str) -> None:
    """Apply the kubelet's rules for names of extended resources, before the kubelet refuses the registration."""
    wrong = ""
    if len(prefix) > LONGEST_PREFIX:
        wrong = f"it is longer than {LONGEST_PREFIX} characters"
    elif not is_subdomain(prefix, LONGEST_PREFIX):
        wrong = "it is not a lower-case domain name"
    elif prefix.endswith("kubernetes.io"):
        wrong = "Kubernetes reserves names that end in kubernetes.io"
    elif prefix.startswith("requests."):
        wrong = "Kubernetes reserves names that begin with requests."
    if wrong:
        raise FatalError(f"cannot use --resource-prefix {prefix!r}: {wrong}", f"give a domain such as {PREFIX}")


def _check_cluster(choice: ReportChoice) -> None:
    if choice.reports is Reports.OFF:
        return
    if choice.reports is Reports.ON and (why := credentials.missing(choice, os.environ)):
        raise FatalError(f"cannot report to the cluster: {why}", "or set --cluster-reports off")


def check_nvsentinel(choice: ReportChoice) -> None:
    """Raise a FatalError if events for NVSentinel could not name their node, or could not reach the connector."""
    if choice.nvsentinel_socket is None:
        return
    check_length(choice.nvsentinel_socket, "--nvsentinel-socket")
    if not is_subdomain(choice.node):
        raise FatalError(
            f"cannot report to NVSentinel: --node-name {choice.node!r} is not a valid name",
            "give the node's name in the cluster, or NODE_NAME",
        )


def check_directory(path: Path, what: str, flag: str) -> None:
    """Raise a FatalError if the path cannot be a directory of the kubelet. It may be missing: see ``until_made``."""
    try:
        why = "" if stat.S_ISDIR(path.stat().st_mode) else "it is not a directory"
    except FileNotFoundError:
        return
    except OSError as error:
        why = (error.strerror or str(error)).lower()
    if why:
        raise FatalError(f"cannot use {what} {path}: {why}", f"give the directory of the kubelet with {flag}")


def check_length(path: Path, flag: str) -> None:
    """Raise a FatalError if the path is too long for a socket."""
    length = len(os.fsencode(path))
    if length > unix_sockets.MAX_PATH_BYTES:
        raise FatalError(
            f"cannot use socket path {path}: it is {length} bytes long, and the kernel accepts "
            f"at most {unix_sockets.MAX_PATH_BYTES}",
            f"give a shorter {flag}",
        )
