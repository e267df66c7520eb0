"""How the signing of receipts goes, for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SigningState:
    """What has happened since the start of the service."""

    last_checkpoint: float | None = None  # wall; when the newest checkpoint was signed
