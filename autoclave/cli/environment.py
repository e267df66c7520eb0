"""The environment variables of the flags. A module of its own, because the verb ``plugin`` imports no other helper."""

from __future__ import annotations

ENVIRONMENT = {"auto_envvar_prefix": "AUTOCLAVE"}
"""``--run-dir`` is AUTOCLAVE_RUN_DIR for every verb; without this, click would call it AUTOCLAVE_STATUS_RUN_DIR."""
