"""The options of the DRA driver, and their check: one line for each error, with the flag to change."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from ground import paths, public_names
from ground.errors import FatalError
from plugin import config as plugin_config
from plugin import response
from plugin.cluster import credentials
from plugin.cluster.report_choice import ReportChoice
from scrub_api.request_limits import is_subdomain

DRIVER = public_names.DRIVER
VENDOR_DRIVER = "gpu.nvidia.com"
PLUGINS_DIR = "/var/lib/kubelet/plugins"
REGISTRY_DIR = "/var/lib/kubelet/plugins_registry"
LONGEST_DRIVER = 63  # characters, as Kubernetes allows


@dataclass(frozen=True, slots=True)
class DraConfig:
    """The options of ``autoclave dra``."""

    driver: str = DRIVER
    plugins_dir: Path = Path(PLUGINS_DIR)
    registry_dir: Path = Path(REGISTRY_DIR)
    run_dir: Path = Path(paths.RUN_DIR)
    cluster: ReportChoice = field(default_factory=ReportChoice)
    cdi_kind: str = "nvidia.com/gpu"
    clean_within: float = 30.0
    metrics_address: str = ""
    version: str = ""  # no flag: the version of the release
    vendor_registry_dir: Path | None = None  # another vendor's driver registers there, and is behind this one
    taint_rules: bool = False  # for the devices of that driver
    cdi_dirs: tuple[Path, ...] = tuple(map(Path, paths.CDI_DIRS))
    instance: str = ""  # in the names of the sockets; each process has its own, so that two can run during an update
    log_level: str = "info"
    log_format: str = "auto"

    @property
    def service_socket(self) -> Path:
        """Where the kubelet sends its calls for claims."""
        return self.plugins_dir / self.driver / f"dra{self.suffix}.sock"

    @property
    def registry_socket(self) -> Path:
        """The socket that the kubelet finds."""
        return self.registry_dir / f"{self.driver}{self.suffix}-reg.sock"

    @property
    def in_front_dir(self) -> Path:
        """The directory of the sockets for claims, in front of another vendor's driver."""
        return self.plugins_dir / "autoclave"

    @property
    def suffix(self) -> str:
        """The end of the names of sockets."""
        return f"-{self.instance}" if self.instance else ""


def check(config: DraConfig) -> Path:
    """The credentials for the API server. Raises a FatalError for options that cannot work."""
    if not is_subdomain(config.driver, LONGEST_DRIVER):
        raise FatalError(
            f"cannot use --driver-name {config.driver!r}: it is not a lower-case domain name of at most"
            f" {LONGEST_DRIVER} characters",
            f"give a name such as {DRIVER}",
        )
    try:
        response.check(response.Style(cdi_kind=config.cdi_kind))
    except ValueError as error:
        raise FatalError(str(error), "give another --cdi-kind") from error
    plugin_config.check_directory(config.plugins_dir, "the kubelet's plugin directory", "--plugins-dir")
    plugin_config.check_directory(config.registry_dir, "the plugin registry", "--registry-dir")
    plugin_config.check_length(paths.scrubber_socket(config.run_dir), "--run-dir")
    if config.vendor_registry_dir is None:
        if config.taint_rules:
            raise FatalError(
                "cannot use --taint-rules: it is for another vendor's driver", "give --vendor-registry-dir"
            )
        plugin_config.check_length(config.service_socket, "--plugins-dir")
        plugin_config.check_length(config.registry_socket, "--registry-dir")
    else:
        _check_vendor(config, config.vendor_registry_dir)
    plugin_config.check_nvsentinel(config.cluster)
    if why := credentials.missing(config.cluster, os.environ):
        raise FatalError(f"cannot read claims: {why}")
    path = credentials.find(config.cluster, os.environ)
    if path is None:
        raise FatalError("cannot read claims: there are no credentials")
    return path


def _check_vendor(config: DraConfig, directory: Path) -> None:
    if not directory.is_dir():
        raise FatalError(
            f"cannot use --vendor-registry-dir {directory}: it is not a directory",
            "make it, and let the vendor's driver register there (NVIDIA's chart:"
            " kubeletPlugin.kubeletRegistrarDirectoryPath)",
        )
    if directory.resolve().is_relative_to(config.registry_dir.resolve()):  # the kubelet searches subdirectories
        raise FatalError(
            f"cannot use --vendor-registry-dir {directory}: the kubelet would find the vendor's driver there",
            f"give a directory outside of {config.registry_dir}",
        )
    longest = "0" * 12 + f"-reg.sock{config.suffix}autoclave-"  # of a vendor with a long name
    plugin_config.check_length(config.in_front_dir / longest, "--plugins-dir")
    plugin_config.check_length(config.registry_dir / longest, "--registry-dir")
