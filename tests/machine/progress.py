"""What a person sees while they wait."""

from __future__ import annotations

import sys
import time

_BEGAN = time.monotonic()


def say(text: str) -> None:
    """One line on stderr, with the seconds since the start."""
    print(f"{time.monotonic() - _BEGAN:5.0f} s  {text}", file=sys.stderr, flush=True)  # noqa: T201 - progress
