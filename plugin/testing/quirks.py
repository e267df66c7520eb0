"""Which faults of the real kubelet are copied, and how long its waits are.

The defaults are kubelet 1.36: every fault is on, because that is what ships. The ids are those of
docs/kubelet-stand-in.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Quirks:
    """Faults of kubelet 1.36; False is a kubelet in which that fault is repaired."""

    old_stream_ends_new: bool = True  # R1: the end of an old ListAndWatch stream kills the new endpoint
    force_delete_frees: bool = True  # R4: a force-deleted pod's devices are free while its containers run
    ended_init_is_asked: bool = True  # R5: re-admission asks for the devices of an init container that is done
    vanished_device_panics: bool = True  # R6: a device leaves the list while its Allocate is under way
    list_forgets_allocating: bool = True  # R8: PodResources List forgets what an Allocate under way has taken
    failed_register_orphans: bool = True  # R10: a Register that fails makes the live plugin's end go unnoticed
    restart_skips_prestart: bool = True  # R11: no PreStartContainer between a kubelet start and our registration

    @classmethod
    def repaired(cls) -> Self:
        """A kubelet without any of them."""
        return cls(*[False] * 7)


@dataclass(frozen=True, slots=True)
class Timing:
    """The kubelet's waits, in seconds; tests shorten what they would have to sit out."""

    dial: float = 10.0
    prestart: float = 30.0
    stopped_grace: float = 300.0  # until a resource without a plugin is forgotten
    get_info: float = 1.0
    notify: float = 5.0
    registry_retry: float = 0.5  # doubled with each failure ...
    registry_retry_most: float = 120.0  # ... up to this
    start_retry: tuple[float, float] = (0.5, 12.0)  # the first retry of a failed container start, and the later ones
