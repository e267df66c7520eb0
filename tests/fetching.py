"""What an HTTP door of ours answers."""

from __future__ import annotations

import urllib.error
import urllib.request

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def fetch(address: str, path: str, accept: str = "") -> tuple[int, str]:
    """Status and body."""
    request = urllib.request.Request(f"http://{address}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - http, as above
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
