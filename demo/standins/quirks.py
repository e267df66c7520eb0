"""The faults of the real kubelet that are copied, and the lengths of its waits.

The defaults are those of kubelet 1.36, with every fault on. The ids are those of docs/kubelet-stand-in.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Quirks:
    """Faults of kubelet 1.36; False means that the fault is repaired."""

    old_stream_ends_new: bool = True  # R1: the end of an old ListAndWatch stream stops the new endpoint
    force_delete_frees: bool = True  # R4: a force-deleted pod's devices are free while its containers run
    ended_init_is_asked: bool = True  # R5: re-admission allocates for an init container that has ended
    vanished_device_panics: bool = True  # R6: a device leaves the list during its Allocate
    list_forgets_allocating: bool = True  # R8: PodResources List forgets the devices of a running Allocate
    failed_register_orphans: bool = True  # R10: after a failed Register, the end of the running plugin is missed
    restart_skips_prestart: bool = True  # R11: no PreStartContainer between a kubelet start and the registration
    unprepares_for_others: bool = True  # D1: the end of a pod that never had the claim ends it

    @classmethod
    def repaired(cls) -> Self:
        """A kubelet without these faults."""
        return cls(*[False] * 8)


@dataclass(frozen=True, slots=True)
class Timing:
    """The kubelet's waits, in seconds; tests may shorten them."""

    dial: float = 10.0
    prestart: float = 30.0
    stopped_grace: float = 300.0  # until a resource without a plugin is forgotten
    get_info: float = 1.0
    notify: float = 5.0
    registry_retry: float = 0.5  # doubled with each failure ...
    registry_retry_most: float = 120.0  # ... up to this
    start_retry: tuple[float, float] = (0.5, 12.0)  # the first retry of a failed container start, and the later ones
    dra_call: float = 45.0  # NodePrepareResources, NodeUnprepareResources
    slices_kept: float = 30.0  # after the last connection to a DRA driver was lost
    slices_retry: float = 1.0  # after a failed deletion of slices; doubled with each failure ...
    slices_retry_most: float = 300.0  # ... up to this
    health_retry: float = 5.0  # after the end of a health stream
    health_valid: float = 30.0  # of a message about the health of a device, unless the message says another time
