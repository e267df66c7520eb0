"""Who may be ended of those who are left on a device: said here alone, for who decides it and for who does it.

A leftover was started while a tenant had the device that was let start on it. Who came before him, who came after him
and who came where nobody was let start is somebody else, such as an operator's shell: foreign, whatever is due to be
done. Who came while the tenant had it cannot be told from what the tenant started.
"""

from __future__ import annotations

import math

from scrubber.core.model import Holder, Record

Span = tuple[float, float]  # uptime: from the grant, to the end that was recorded


def let_start(record: Record) -> bool:
    """Whether somebody was let start on it who has it still. An unannounced grant is all that some ever say."""
    if record.owner is not None and not record.owner.unannounced:
        return True
    return record.grant is not None and not record.grant.announced


def span(record: Record) -> Span | None:
    """When its last tenant had it; None where none was let start."""
    if record.tenancy_began is None:
        return None
    ended = math.inf if let_start(record) else record.tenancy_ended
    return None if ended is None else (record.tenancy_began, ended)


def may_end(holder: Holder, tenancy: Span | None, *, leftovers: bool, foreign: bool) -> bool:
    """Whether this process may be ended, if these may: never one of a live container."""
    if holder.container is not None:
        return False
    left = tenancy is not None and tenancy[0] <= holder.started <= tenancy[1]
    return leftovers if left else foreign
