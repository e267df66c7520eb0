"""Loads structlog without rich, for the service and the plugin.

structlog loads rich wherever rich is installed, to draw tracebacks at a terminal. Both programs write tracebacks as
text. Without rich they start sooner, and the plugin is smaller by a tenth. Other modules can still load rich later.
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
