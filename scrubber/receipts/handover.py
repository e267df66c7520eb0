"""The id of a hand-over: which tenancy of a device a receipt is for."""

from __future__ import annotations

import hashlib
import hmac


def handover_id(secret: bytes, device: str, tenancy: int) -> str:
    """The id of the tenancy of this number, which nobody without the node's secret can guess.

    It changes when a tenancy ends, also by a reboot, and stays the same over restarts of the service and the container.
    """
    text = f"{device}\n{tenancy!r}"
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()[:24]


def owner_digest(secret: bytes, handover: str, owner: str) -> str:
    """The last owner under the node's secret; empty without one.

    It differs in each hand-over, so that two tenants cannot find out that they followed the same owner.
    """
    text = f"owner\n{handover}\n{owner}"
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()[:32] if owner else ""
