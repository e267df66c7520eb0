"""Which processes are leftovers of the last owner, and which processes a scrub may end.

Both questions are about processes in no container. A leftover is a process that was started while the last tenant whose
start was admitted had the device. A process from before or after that time is foreign, such as an operator's shell. If
no start was admitted, every process is foreign. A process that another program started during that time cannot be
distinguished from a process of the tenant. Workers load this module, so it does not know policies:
``next_scrub`` says what a policy allows.
"""

from __future__ import annotations

from scrubber.core.model import Holder

Span = tuple[float, float]  # uptime: from the grant to the recorded end


def may_end(holder: Holder, tenancy: Span | None, *, leftovers: bool, foreign: bool) -> bool:
    """Whether this process may be ended: never a process of a live container.

    ``leftovers``, ``foreign``: whether processes of this kind may be ended.
    """
    if holder.container is not None:
        return False
    left = tenancy is not None and tenancy[0] <= holder.started <= tenancy[1]
    return leftovers if left else foreign
