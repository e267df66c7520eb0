"""How a process ended, in words."""

from __future__ import annotations

import signal


def ending(status: int) -> str:
    """How a process ended, as in ``with status 3`` or ``by signal 9 (SIGKILL)``. A signal has a negative status."""
    if status >= 0:
        return f"with status {status}"
    try:
        return f"by signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"by signal {-status}"
