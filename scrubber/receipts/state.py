"""How the signing of receipts goes, for metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SigningState:
    """What has happened since the start of the service."""

    failed: int = 0  # receipts that could not be signed
    last_checkpoint: float | None = None  # wall; when the newest checkpoint was signed
