"""Where things lie: the directories when none is named, and what is in them. Small: every verb asks here first."""

from __future__ import annotations

from pathlib import Path

STATE_DIR = "/var/lib/autoclave"
RUN_DIR = "/run/autoclave"
KUBELET_DIR = "/var/lib/kubelet/device-plugins"
POD_LOGS_DIR = "/var/log/pods"


def socket(run_dir: Path) -> Path:
    """Where whoever hands devices out knocks."""
    return run_dir / "scrubber.sock"


def admin_socket(run_dir: Path) -> Path:
    """Where operators knock."""
    return run_dir / "admin.sock"


def ledger(state_dir: Path) -> Path:
    """Where a state directory keeps its ledger."""
    return state_dir / "ledger.db"
