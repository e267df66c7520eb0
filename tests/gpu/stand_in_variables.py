"""A pytest plugin for rehearsals. The guards around every test take the stand-ins' variables away; it keeps them."""

from __future__ import annotations

import os

KEPT = {name: value for name, value in os.environ.items() if name.startswith("AUTOCLAVE_FAKE")}


def pytest_sessionstart() -> None:
    os.environ.update(KEPT)
