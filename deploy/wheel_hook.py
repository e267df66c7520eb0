"""Makes what a wheel holds and this repository does not. Hatch runs it; an editable installation needs none of that."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Made(BuildHookInterface[BuilderConfig]):
    """Compiles the kernels and writes the page for ``man``. Kernels that differ from their manifest end the build."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Hatch calls this before it collects the files."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from deploy import compile_kernels, manual  # noqa: PLC0415 - found only now

        compile_kernels.build()
        self.folder = TemporaryDirectory()  # until the wheel is packed
        page = Path(self.folder.name, manual.PAGE)
        page.write_text(manual.man(), encoding="utf-8")
        build_data["shared_data"][str(page)] = f"share/man/man1/{manual.PAGE}"
