"""Imports structlog without rich, for the verb ``plugin``, which must stay small.

structlog imports rich wherever it is installed, to draw tracebacks on a terminal. The plugin writes tracebacks as text,
and rich would take a tenth of its memory. Other modules can still import rich afterwards.
"""

from __future__ import annotations

import importlib
import sys

if "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]  # Python's way to say that a module does not exist
    try:
        importlib.import_module("structlog")
    finally:
        del sys.modules["rich"]
