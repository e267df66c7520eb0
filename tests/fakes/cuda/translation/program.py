"""What both translators write: the kernels of one image as a C++ program for the emulated GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

LONG = 1600  # statements; over more, an optimiser sits for a minute
HEAD = '#include "translation/machine_code.h"\n\nnamespace {\n'
TABLE = "}  // namespace\n\nconst std::vector<Kernel> KERNELS = {\n"


class UnknownCodeError(Exception):
    """The translator does not know an instruction, or a form of it."""


def parsed(pattern: str | re.Pattern[str], text: str) -> re.Match[str]:
    """All of a text, which has to be of this form."""
    if match := re.fullmatch(pattern, text):
        return match
    raise UnknownCodeError(text)


@dataclass(frozen=True)
class Argument:
    """Where the code reads an argument from, in bytes."""

    offset: int
    size: int


@dataclass(frozen=True)
class Kernel:
    name: str
    own_shared: int
    arguments: tuple[Argument, ...]
    lines: tuple[str, ...]  # of C++: what one thread does

    def text(self) -> str:
        taken = (
            f"  std::memcpy(arguments.bytes + {argument.offset}, parameters[{number}], {argument.size});"
            for number, argument in enumerate(self.arguments)
        )
        way = '__attribute__((optimize("O0"))) ' if len(self.lines) > LONG else ""
        return "\n".join(
            [
                f"{way}void run_{self.name}(const Arguments& arguments) {{",
                f"  [[maybe_unused]] constexpr u32 OWN = {self.own_shared};",
                *self.lines,
                "}\n",
                f"Deed {self.name}_with(void* const* parameters) {{",
                "  Arguments arguments{};",
                *taken,
                f"  return [arguments] {{ run_{self.name}(arguments); }};",
                "}\n",
            ]
        )


def program(kernels: Iterable[Kernel]) -> str:
    kernels = list(kernels)
    rows = (f'    {{"{kernel.name}", {kernel.own_shared}, {kernel.name}_with}},\n' for kernel in kernels)
    return HEAD + "\n".join(kernel.text() for kernel in kernels) + TABLE + "".join(rows) + "};\n"
