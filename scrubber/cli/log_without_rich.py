"""Loads structlog without rich, for the verb that has to stay small.

structlog loads rich wherever it is installed, to draw tracebacks at a terminal. The plugin writes them as text, and
would carry a tenth of its memory for nothing. Whatever else wants rich can still load it afterwards.
"""

from __future__ import annotations

import importlib
import sys

if "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]  # Python's own way to say that there is none
    try:
        importlib.import_module("structlog")
    finally:
        del sys.modules["rich"]
