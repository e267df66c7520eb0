"""The length of the long histories."""

from __future__ import annotations

import pytest


@pytest.fixture
def soak(request) -> bool:
    """Whether there is time for the long histories."""
    return bool(request.config.getoption("--soak", default=False))
