"""Which devices the kubelet believes that it can hand out, and under which resource: its checkpoint, read only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scrubber.core.diagnosis.base import CheckFault
from scrubber.node import checkpoint, safe_read


def devices(directory: Path) -> dict[str, frozenset[str]] | CheckFault:
    """The healthy devices of each resource. The kubelet writes the file anew with each list that a plugin sends."""
    said = safe_read.text(directory / checkpoint.NAME)
    if isinstance(said, CheckFault):
        return said
    try:
        return _resources(json.loads(said)["Data"]["RegisteredDevices"] or {})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return CheckFault(f"it is not laid out as a checkpoint ({error!r})")


def _resources(document: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    found = {resource: frozenset(ids or ()) for resource, ids in document.items()}  # Go writes an empty list as null
    if not all(isinstance(each, str) for ids in found.values() for each in ids):
        raise TypeError("a device id that is no text")
    return found
