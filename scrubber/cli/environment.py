"""Flags as variables. In a file of its own for the verb that may load nothing else: the plugin stays small."""

from __future__ import annotations

ENVIRONMENT = {"auto_envvar_prefix": "AUTOCLAVE"}
"""``--run-dir`` is AUTOCLAVE_RUN_DIR for every verb; click alone would call it AUTOCLAVE_STATUS_RUN_DIR."""
