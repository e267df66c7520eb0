"""Signs receipts and checkpoints, and puts them where others find them: the ledger, the log, the tenant's directory."""

from __future__ import annotations

from ground import log

logger = log.get("receipts")
