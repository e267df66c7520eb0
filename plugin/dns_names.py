"""DNS names as Kubernetes checks them (RFC 1123)."""

from __future__ import annotations

import re

LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{LABEL}(\.{LABEL})*")


def is_subdomain(name: str, max_length: int = 253) -> bool:
    """Whether the name is a DNS subdomain of at most this length."""
    return len(name) <= max_length and _SUBDOMAIN.fullmatch(name) is not None
