"""How long the kubelet waits: the defaults are those of kubelet 1.36."""

from __future__ import annotations

from dataclasses import dataclass


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
