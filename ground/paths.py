"""The default directories, and the files in them. Small, because every command imports it."""

from __future__ import annotations

import os
from pathlib import Path

STATE_DIR = "/var/lib/autoclave"
RUN_DIR = "/run/autoclave"
KUBELET_DIR = "/var/lib/kubelet/device-plugins"
KUBELET_SOCKET = "kubelet.sock"  # in it
CDI_DIRS = ("/etc/cdi", "/var/run/cdi")
POD_LOGS_DIR = "/var/log/pods"
RECEIPTS_IN_CONTAINERS, RECEIPTS_VARIABLE = "/run/autoclave/receipts", "AUTOCLAVE_RECEIPTS"  # which has that value


def of_kubernetes() -> bool:
    """Whether this is a node of Kubernetes, or a container of one: where it is not, no advice names a pod."""
    return "KUBERNETES_SERVICE_HOST" in os.environ or Path(KUBELET_DIR).parent.exists()


def scrubber_socket(run_dir: Path) -> Path:
    """The socket for the plugin and for others that hand out devices."""
    return run_dir / "scrubber.sock"


def admin_socket(run_dir: Path) -> Path:
    """The socket for operators."""
    return run_dir / "admin.sock"


def ledger_head(run_dir: Path) -> Path:
    """The file that shows whether the ledger is an older copy."""
    return run_dir / "ledger.head"


def last_list(run_dir: Path) -> Path:
    """The last list of devices, for a plugin that starts while the service is away."""
    return run_dir / "last-list"


def last_error(run_dir: Path) -> Path:
    """The error that ended the last run of the service; missing while it serves, and after a stop."""
    return run_dir / "last-error"


def error_report() -> Path:
    """What a person reports of the last unexpected error of a command. RuntimeError if this user has no home."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (state if state.is_absolute() else Path.home() / ".local/state") / "autoclave/unexpected-error.md"


def last_policy(state_dir: Path) -> Path:
    """The last policy file without faults, for a start at which the file has some."""
    return state_dir / "last-policy.yaml"


def whole_policy(state_dir: Path, digest: str) -> Path:
    """A policy that was in force, with all defaults, which rows of the ledger name by this digest."""
    return state_dir / "policies" / f"{digest}.json"


def proof_settings(state_dir: Path, digest: str) -> Path:
    """The settings of a policy that was in force, which receipts name by this digest."""
    return state_dir / "proof-settings" / f"{digest}.json"


def exempt_names(state_dir: Path, digest: str) -> Path:
    """Who was exempt from the fence, which receipts name by this digest."""
    return state_dir / "exempt-names" / f"{digest}.txt"


def receipts(state_dir: Path) -> Path:
    """The directory with the receipts of the present hand-overs, which containers get."""
    return state_dir / "receipts"


def receipt_key(state_dir: Path) -> Path:
    """The directory with the key that signs receipts."""
    return state_dir / "receipt-key"


def last_checkpoint(state_dir: Path) -> Path:
    """The newest signed checkpoint of the ledger."""
    return state_dir / "last-checkpoint"


def ledger(state_dir: Path) -> Path:
    """The ledger in a state directory."""
    return state_dir / "ledger.db"
