"""What an HTTP door of ours answers."""

from __future__ import annotations

import shutil
import subprocess
import time
import urllib.error
import urllib.request

from scrubber.ground import http_server
from tests.patience import WITHIN

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def fetch(address: str, path: str, accept: str = "") -> tuple[int, str]:
    """Status and body."""
    request = urllib.request.Request(f"http://{address}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=WITHIN) as answer:  # noqa: S310 - http, as above
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


_shown: dict[str, float] = {}  # when each address last showed its metrics


def metrics(address: str) -> str:
    """All metrics in OpenMetrics, as they are now: those that were shown here are shown again for a moment."""
    time.sleep(
        max(0.0, _shown.get(address, 0.0) + http_server.CACHE_SECONDS - time.monotonic())
    )  # nothing else tells that it is over
    status, text = fetch(address, "/metrics", OPENMETRICS)
    _shown[address] = time.monotonic()
    assert status == 200
    return text


def lint(text: str) -> None:
    """The linter of Prometheus (Debian: prometheus) has nothing to say about these metrics, where it is installed."""
    if (promtool := shutil.which("promtool")) is not None:
        checked = subprocess.run([promtool, "check", "metrics"], input=text.encode(), capture_output=True, check=False)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
