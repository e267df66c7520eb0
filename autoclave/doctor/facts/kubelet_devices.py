"""Read from the kubelet's checkpoint which devices it can allocate, by resource."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoclave.doctor.base import CheckFault
from autoclave.doctor.facts import safe_read
from scrubber.node import checkpoint


def devices(directory: Path) -> dict[str, frozenset[str]] | CheckFault:
    """The healthy devices of each resource. The kubelet rewrites the file at each list that a plugin sends."""
    said = safe_read.text(directory / checkpoint.NAME)
    if isinstance(said, CheckFault):
        return said
    try:
        return _resources(json.loads(said)["Data"]["RegisteredDevices"] or {})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return CheckFault(f"it does not have the format of a checkpoint ({error!r})")


def _resources(document: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    found = {resource: frozenset(ids or ()) for resource, ids in document.items()}  # Go writes an empty list as null
    if not all(isinstance(each, str) for ids in found.values() for each in ids):
        raise TypeError("a device id that is not text")
    return found
