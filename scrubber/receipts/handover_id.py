"""The id (an HMAC) of a hand-over, the tenancy that a receipt is for, and the digest of its owner."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable
from itertools import chain

EARLIER = 100_000  # tenancies of a device: at ten an hour, of a year


def handover_id(secret: bytes, device: str, tenancy: int) -> str:
    """The id of the tenancy of this number, which nobody without the node's secret can guess.

    It changes when a tenancy ends, also by a reboot, and stays the same over restarts of the service and the container.
    """
    text = f"{device}\n{tenancy!r}"
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()[:24]


def found_handover(
    secret: bytes, device: str, newest: int, begins: Iterable[int], is_right: Callable[[str], bool]
) -> str:
    """The id of the tenancy that is the right one, from a newest number downwards; empty if there is none.

    ``begins``: the numbers from which the device has begun to count its tenancies: each is far above those before it.
    """
    numbers = (range(newest, max(newest - EARLIER, 0), -1), *(range(first, first + EARLIER) for first in begins))
    ids = (handover_id(secret, device, number) for number in chain.from_iterable(numbers))
    return next(filter(is_right, ids), "")


def owner_digest(secret: bytes, handover: str, owner: str) -> str:
    """The last owner under the node's secret; empty without one.

    It differs in each hand-over, so that two tenants cannot find out that they followed the same owner.
    """
    text = f"owner\n{handover}\n{owner}"
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()[:32] if owner else ""
