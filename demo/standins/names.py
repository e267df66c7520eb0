"""The resource names that the kubelet accepts."""

from __future__ import annotations

import re

LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
QUALIFIED = re.compile(rf"(?P<domain>{LABEL}(\.{LABEL})*)/(?P<name>[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)")
LONGEST_DOMAIN = 253 - len("requests.")  # the kubelet checks the name with this prefix, which quotas use
LONGEST_NAME = 63


def is_extended(resource: str) -> bool:
    """Whether a device plugin may offer a resource of this name."""
    match = QUALIFIED.fullmatch(resource)
    if match is None or "kubernetes.io/" in resource or resource.startswith("requests."):
        return False
    return len(match["domain"]) <= LONGEST_DOMAIN and len(match["name"]) <= LONGEST_NAME
