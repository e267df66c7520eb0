"""Length and seed of the long histories."""

from __future__ import annotations

import os
import secrets

import pytest


@pytest.fixture
def soak(request) -> bool:
    """Whether there is time for the long histories."""
    return bool(request.config.getoption("--soak", default=False))


@pytest.fixture
def seed() -> int:
    """Another history every time. SOAK_SEED, in the environment, repeats the moves of an earlier one."""
    return int(os.environ.get("SOAK_SEED") or secrets.randbelow(10**6))
