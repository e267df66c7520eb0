"""Imports structlog without rich, for the service and the plugin.

structlog imports rich wherever it is installed, to draw tracebacks on a terminal. Both programs write tracebacks as
text. Without rich they start sooner, and the plugin is smaller by a tenth. Other modules can still import rich later.
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
