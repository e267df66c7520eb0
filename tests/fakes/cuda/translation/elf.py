"""As much of the file format of machine code as tells kernels apart, and says how they are launched."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

VALUE, BLOCK = 3, 4  # forms of an attribute: its value stands in place of a size, or follows
ARGUMENTS, ARGUMENT = 0x0A, 0x17  # attributes of one kernel: where its arguments are, and each of them


class Elf:
    """One image."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.machine: int = struct.unpack_from("<H", data, 18)[0]
        self.flags: int = struct.unpack_from("<I", data, 48)[0]
        (table,) = struct.unpack_from("<Q", data, 40)
        size, count, names = struct.unpack_from("<HHH", data, 58)
        headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + size * n) for n in range(count)]
        self.headers = {self._text(headers[names][4] + header[0]): header for header in headers}

    @property
    def architecture(self) -> int:
        """In the flags, where it moved by a byte when more of them were needed."""
        return self.flags & 0xFF if self.data[8] < 8 else self.flags >> 8 & 0xFF

    def section(self, name: str) -> bytes:
        _, _, _, _, offset, size, *_ = self.headers[name]
        return self.data[offset : offset + size]

    def size(self, name: str) -> int:
        """Of a section in memory; of one that is not there, 0."""
        return self.headers[name][5] if name in self.headers else 0

    def symbols(self) -> list[str]:
        start = self.headers[".strtab"][4]
        entries = struct.iter_unpack("<IBBHQQ", self.section(".symtab"))
        return [self._text(start + name) for name, *_ in entries]

    def answers(self, attribute: int) -> Mapping[str, int]:
        """What the assembler says of each kernel."""
        symbols = self.symbols()
        blocks = [struct.unpack_from("<II", value) for kind, value in self._attributes(".nv.info") if kind == attribute]
        return {symbols[symbol]: value for symbol, value in blocks}

    def arguments(self, kernel: str) -> tuple[int, list[tuple[int, int]]]:
        """Where the arguments of a kernel begin in the constants, and the offset and size of each from there."""
        start, arguments = 0, {}
        for kind, value in self._attributes(f".nv.info.{kernel}"):
            if kind == ARGUMENTS:
                _, start, _ = struct.unpack("<IHH", value)
            if kind == ARGUMENT:
                _, number, offset, packed = struct.unpack("<IHHI", value)
                arguments[number] = (offset, packed >> 18)
        return start, [arguments[number] for number in sorted(arguments)]

    def _attributes(self, section: str) -> Iterator[tuple[int, bytes]]:
        info, at = self.section(section), 0
        while at < len(info):
            form, kind, size = struct.unpack_from("<BBH", info, at)
            at += 4
            if form == BLOCK:
                yield kind, info[at : at + size]
                at += size

    def _text(self, at: int) -> str:
        return self.data[at : self.data.index(b"\0", at)].decode()
