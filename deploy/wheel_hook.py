"""Puts the compiled kernels into a wheel. Hatch runs this file; an editable installation needs no kernels."""

from __future__ import annotations

import sys
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Kernels(BuildHookInterface[BuilderConfig]):
    """Compiles the kernels before a wheel is packed. The build fails if they are not those of their manifest."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Hatch calls this before it collects the files."""
        del build_data
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from deploy import compile_kernels  # noqa: PLC0415 - found only now

        compile_kernels.build()
