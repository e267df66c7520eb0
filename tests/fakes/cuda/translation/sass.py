"""Machine code, as nvdisasm prints it, in C++ for the emulated GPU.

Every instruction becomes one statement. Whatever is not in the table at the end, by its full name and with exactly the
operands that its function takes, is an error.
"""

from __future__ import annotations

import functools
import itertools
import re
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tests.fakes.cuda.translation.elf import Elf
from tests.fakes.cuda.translation.program import Argument, Kernel, UnknownCodeError, parsed, program

RESERVED_SHARED = 1024  # bytes before a kernel's own shared memory, from 9.0 on
FULL = 0xFFFFFFFF
KEPT = 240  # registers that a kernel listens to

# Words of constant bank 0 before the arguments, by where these begin. Those of 0 are for memory that no kernel uses.
BLOCK, GRID, SHARED, NOTHING = "blockDim.x", "gridDim.x", "emulated_shared_bytes()", "0u"
DESCRIPTOR = ("static_cast<u32>(DESCRIPTOR)", "static_cast<u32>(DESCRIPTOR >> 32)")  # of the memory of the device
WORDS = {
    0x160: {0x0: BLOCK, 0xC: GRID, 0x28: NOTHING, 0x2C: SHARED, 0x118: DESCRIPTOR[0], 0x11C: DESCRIPTOR[1]},
    0x210: {0x0: BLOCK, 0xC: GRID, 0x28: NOTHING, 0x2C: SHARED, 0x208: DESCRIPTOR[0], 0x20C: DESCRIPTOR[1]},
    0x380: {0x20C: SHARED, 0x358: DESCRIPTOR[0], 0x35C: DESCRIPTOR[1], 0x360: BLOCK, 0x370: GRID, 0x37C: NOTHING},
}
SPECIAL = {
    "SR_TID.X": "threadIdx.x",
    "SR_CTAID.X": "blockIdx.x",
    "SR_LANEID": "lane()",
    "SR_VIRTUALSMID": "emulated_unit()",
    "SR_CgaCtaId": "0u",
    "SR_CgaSize": "1u",
    "SRZ": "0u",
}
COMPARISONS = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}

TEXT = re.compile(r"\.text\.(\w+):")
LABEL = re.compile(r"\.(L_x_\d+):")
JUMP = re.compile(r"`\(\.(L_x_\d+)\)")
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P[0-6T])\s+)?([A-Z][\w.]*)\s*([^;]*?)\s*;")
IGNORED = re.compile(
    r"\.(section|sectioninfo|sectionflags|align|global|type|size|other|target|headerflags|elftype)\b|//|\w+:$"
)
FILE = {"R": 256, "UR": 64, "P": 7, "UP": 7}  # registers of each kind


@dataclass(frozen=True)
class Instruction:
    address: int
    guard: str
    name: str
    operands: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"{self.name} {', '.join(self.operands)}"


def translated(image: bytes, disassembly: str, omissible: Mapping[tuple[str, int], str] = MappingProxyType({})) -> str:
    """A program in C++; the instructions of ``omissible``, by kernel and address, run unless a test leaves them out."""
    elf, code = Elf(image), dict(listing(disassembly))
    for (kernel, address), text in omissible.items():
        if text not in (
            line.text for line in code[kernel] if isinstance(line, Instruction) and line.address == address
        ):
            raise UnknownCodeError(f"{kernel} does not read {text!r} at {address:#06x} any more: mend this mutant")
    kernels = []
    for name, lines in code.items():
        addresses = {address for kernel, address in omissible if kernel == name}
        kernels.append(_Code(elf, name).kernel(lines, addresses))
    return program(kernels)


def instructions(disassembly: str) -> Iterator[tuple[str, Instruction]]:
    """All of them, each with the name of its kernel."""
    for kernel, lines in listing(disassembly):
        yield from ((kernel, line) for line in lines if isinstance(line, Instruction))


def listing(disassembly: str) -> Iterator[tuple[str, list[Instruction | str]]]:
    """The instructions and labels of each kernel."""
    kernel, lines = "", list[Instruction | str]()
    for text in map(str.strip, disassembly.splitlines()):
        if start := TEXT.fullmatch(text):
            if kernel:
                yield kernel, lines
            kernel, lines = start[1], []
        elif label := LABEL.fullmatch(text):
            lines.append(label[1])
        elif instruction := INSTRUCTION.fullmatch(text):
            address, guard, name, operands = instruction.groups(default="")
            parts = re.split(r",\s*", operands.replace(".reuse", "")) if operands else []
            lines.append(Instruction(int(address, 16), guard, name, tuple(parts)))
        elif text and not IGNORED.match(text):
            raise UnknownCodeError(text)
    yield kernel, lines


def _number(text: str) -> int:
    return int(text, 16) & FULL


def _real(text: str) -> str:
    """A float of the code, by its bits."""
    (bits,) = struct.unpack("<I", struct.pack("<f", float(text)))
    return f"real({bits:#x}u)"


def _is_target(operand: str) -> bool:
    return re.fullmatch(r"U?P[0-6T]", operand) is not None


@functools.cache
def logic_of_tables() -> dict[int, str]:
    """For each table of three inputs, an expression that has it: as short as repeated joining finds them."""
    known = {0xF0: "a", 0xCC: "b", 0xAA: "c", 0x00: "0u", 0xFF: "~0u"}
    known |= {~table & 0xFF: f"~{text}" for table, text in known.items() if text in "abc"}
    while len(known) < 256:
        for (left, one), (right, other) in itertools.combinations(sorted(known.items(), key=lambda it: len(it[1])), 2):
            for sign, table in (("&", left & right), ("|", left | right), ("^", left ^ right)):
                known.setdefault(table, f"({one} {sign} {other})")
                known.setdefault(~table & 0xFF, f"~({one} {sign} {other})")
    return known


class _Code:
    """The code of one kernel: its operands, and what each instruction does with them."""

    def __init__(self, elf: Elf, name: str) -> None:
        self._elf = elf
        self._name = name
        self._start, self._arguments = elf.arguments(name)
        self._reserved = RESERVED_SHARED if elf.architecture >= 90 else 0
        self._words = WORDS[self._start]
        self._end = max(offset + size for offset, size in self._arguments)

    def kernel(self, lines: list[Instruction | str], omissible: Collection[int]) -> Kernel:
        own = self._elf.size(f".nv.shared.{self._name}") - self._reserved
        arguments = tuple(Argument(*argument) for argument in self._arguments)
        return Kernel(self._name, max(own, 0), arguments, tuple(self._statements(lines, omissible)))

    def _statements(self, lines: list[Instruction | str], omissible: Collection[int]) -> list[str]:
        statements = []
        for kind, size in FILE.items():
            statements += [f"  {'bool' if 'P' in kind else 'u32'} {kind}[{size}];", f"  begin({kind});"]
        if left := _left(lines):
            statements.append(f"  constexpr unsigned char LEFT[] = {{{', '.join(map(str, left))}}};")
            canary = "arguments.at<u32>(0)"
            statements.append(f"  for (u32 n = 0; n < emulated_leftovers(); ++n) R[LEFT[n]] = {canary};")
        for line in lines:
            if isinstance(line, str):
                statements.append(f"{line}:;")
                continue
            guards = [f"included({line.address:#x})"] if line.address in omissible else []
            guards += [self.condition(line.guard)] if line.guard else []
            guard = f"if ({' && '.join(guards)}) " if guards else ""
            statements.append(f"  {guard}{{ {self.statement(line)} }}  // {line.address:04x} {line.name}")
        return statements

    def statement(self, line: Instruction) -> str:
        try:
            return _table()[line.name](self, *line.operands)
        except (KeyError, TypeError, ValueError, UnknownCodeError) as error:
            raise UnknownCodeError(f"{self._name} at {line.address:04x}: {line.text}: {error!r}") from error

    # ---- operands

    def word(self, operand: str) -> str:
        """32 bits."""
        if match := re.fullmatch(r"([-~]?)(U?R)(\d+|Z)", operand):
            sign, kind, number = match.groups()
            return f"{sign}{self.register(kind, number)}" if not sign else f"({sign}{self.register(kind, number)})"
        if match := re.fullmatch(r"([-~]?)c\[0x(\d)\]\[(0x[0-9a-f]+|RZ)\]", operand):
            sign, bank, offset = match.groups()
            return sign + self.constant(int(bank), 0 if offset == "RZ" else int(offset, 16))
        if match := re.fullmatch(r"-?0x[0-9a-f]{1,8}", operand):
            return f"{_number(operand):#x}u"
        raise UnknownCodeError(operand)

    def register(self, kind: str, number: str, words: int = 1) -> str:
        """The first of so many ``words``: the hardware has no pair that begins at an odd number, nor such fours."""
        if number == "Z":
            return "0u"
        if int(number) + words > FILE[kind] or int(number) % words:
            raise UnknownCodeError(number)
        return f"{kind}[{number}]"

    def wide(self, operand: str) -> str:
        """64 bits, of two words."""
        if match := re.fullmatch(r"(-?)(U?R)(\d+)", operand):
            sign, kind, number = match.groups()
            return f"{sign}pair({self.register(kind, number, 2)}, {self.register(kind, str(int(number) + 1))})"
        if match := re.fullmatch(r"c\[0x(\d)\]\[(0x[0-9a-f]+)\]", operand):
            bank, offset = int(match[1]), int(match[2], 16)
            return f"pair({self.constant(bank, offset, 2)}, {self.constant(bank, offset + 4)})"
        if re.fullmatch(r"U?RZ", operand):
            return "u64{0}"
        if re.fullmatch(r"-?0x[0-9a-f]+", operand):
            return f"{int(operand, 16) & (2**64 - 1):#x}ull"
        raise UnknownCodeError(operand)

    def constant(self, bank: int, offset: int, words: int = 1) -> str:
        """The first of so many ``words``, which begin at a multiple of their size."""
        if offset % (4 * words):
            raise UnknownCodeError(f"{offset:#x}")
        if bank == 0 and self._start <= offset < self._start + self._end:
            return f"arguments.at<u32>({offset - self._start})"
        if bank == 0:
            return self._words[offset]
        if bank == 2:
            (value,) = struct.unpack_from("<I", self._elf.section(f".nv.constant2.{self._name}"), offset)
            return f"{value:#x}u"
        raise UnknownCodeError(f"constant bank {bank}")

    def condition(self, operand: str) -> str:
        if match := re.fullmatch(r"(!?)(U?P)(\d|T)", operand):
            sign, kind, number = match.groups()
            return f"{sign}{'true' if number == 'T' else f'{kind}[{number}]'}"
        raise UnknownCodeError(operand)

    def addend(self, operand: str) -> str:
        """A word of a sum with a carry, where -x is ~x and one more."""
        if operand.startswith("-") and not operand.startswith("-0x"):
            return f"(u64{{{self.word('~' + operand[1:])}}} + 1)"
        return f"u64{{{self.word(operand)}}}"

    def single(self, operand: str) -> str:
        if match := re.fullmatch(r"(\|?)(R\d+)(\|?)", operand):
            return f"std::abs(real({self.word(match[2])}))" if match[1] and match[3] else f"real({self.word(operand)})"
        return _real(operand)

    def place(self, operand: str) -> str:
        """An address in shared memory, from where the kernel's own begins."""
        match = parsed(r"\[(U?R)(\d+|Z)(\.X4)?(?:\+(-?0x[0-9a-f]+))?(?:\+(UR\d+))?\]", operand)
        kind, number, scaled, offset, uniform = match.groups()
        address = self.register(kind, number) + (" * 4" if scaled else "")
        address += f" + {_number(offset):#x}u" if offset else ""
        address += f" + {self.word(uniform)}" if uniform else ""
        return f"OWN, {address} - {self._reserved:#x}u"

    def address(self, operand: str) -> str:
        """An address in the memory of the device."""
        match = parsed(r"(?:desc\[(UR\d+)\])?\[(U?R\d+)(?:\.64)?(?:\+(-?0x[0-9a-f]+))?\]", operand)
        descriptor, register, offset = match.groups()
        address = self.wide(register) + (f" + {int(offset, 16) & (2**64 - 1):#x}ull" if offset else "")
        return f"described({self.wide(descriptor)}, {address})" if descriptor else address

    def four(self, operand: str) -> str:
        """The first of the four words of a vector."""
        kind, number = parsed(r"(R)(\d+)", operand).groups()
        return self.register(kind, number, 4)

    def put(self, target: str, value: str) -> str:
        """A word into a register."""
        if re.fullmatch(r"U?RZ", target):
            return f"static_cast<void>({value});"
        if re.fullmatch(r"U?R\d+", target):
            return f"{self.word(target)} = {value};"
        raise UnknownCodeError(target)

    def put_wide(self, target: str, value: str) -> str:
        kind, number = parsed(r"(U?R)(\d+)", target).groups()
        low, high = self.register(kind, number, 2), self.register(kind, str(int(number) + 1))
        return f"const u64 wide = {value}; {low} = static_cast<u32>(wide); {high} = static_cast<u32>(wide >> 32);"

    def set(self, target: str, value: str) -> str:
        """A predicate."""
        if re.fullmatch(r"U?PT", target):
            return ""
        if re.fullmatch(r"U?P\d", target):
            return f"{self.condition(target)} = {value};"
        raise UnknownCodeError(target)

    # ---- integers

    def add(self, target: str, *rest: str) -> str:
        """Two targets for the carry: the sum of three can carry twice."""
        carries, terms = self._carries(rest)
        if len(terms) != 3:
            raise UnknownCodeError(terms)
        return self._summed(target, carries, [*map(self.addend, terms)])

    def add_carried(self, target: str, *rest: str) -> str:
        carries, (first, second, third, *conditions) = self._carries(rest)
        if len(conditions) != 2 or re.search("-[URc]", f"{first}{second}{third}"):
            raise UnknownCodeError(rest)
        terms = [*map(self.addend, (first, second, third)), *(f"u64{{{self.condition(it)}}}" for it in conditions)]
        return self._summed(target, carries, terms)

    def _carries(self, rest: tuple[str, ...]) -> tuple[list[str], list[str]]:
        carries = [*itertools.takewhile(_is_target, rest)]
        if len(carries) > 2:
            raise UnknownCodeError(rest)
        return carries, [*rest[len(carries) :]]

    def _summed(self, target: str, carries: list[str], terms: list[str]) -> str:
        sets = (self.set(carry, f"sum >> 32 > {number}") for number, carry in enumerate(carries))
        return f"const u64 sum = {' + '.join(terms)}; {self.put(target, 'static_cast<u32>(sum)')} {' '.join(sets)}"

    def add_two(self, target: str, one: str, other: str) -> str:
        return self.put(target, f"{self.word(one)} + {self.word(other)}")

    def add_wide(self, target: str, one: str, other: str) -> str:
        return self.put_wide(target, f"{self.wide(one)} + {self.wide(other)}")

    def multiply(self, target: str, one: str, other: str, third: str) -> str:
        return self.put(target, f"{self.word(one)} * {self.word(other)} + {self.word(third)}")

    def multiply_carried(self, target: str, one: str, other: str, third: str, carry: str) -> str:
        if third.startswith("-"):
            raise UnknownCodeError(third)
        return self.put(target, f"{self.word(one)} * {self.word(other)} + {self.word(third)} + {self.condition(carry)}")

    def multiply_wide(self, target: str, one: str, other: str, third: str) -> str:
        return self.put_wide(target, f"u64{{{self.word(one)}}} * {self.word(other)} + {self.wide(third)}")

    def multiply_high(self, target: str, one: str, other: str, third: str) -> str:
        product = f"(u64{{{self.word(one)}}} * {self.word(other)} + {self.wide(third)}) >> 32"
        return self.put(target, f"static_cast<u32>({product})")

    def shift_add(self, target: str, *rest: str) -> str:
        carries, (one, other, bits) = self._carries(rest)
        shifted = f"{self.word(one.removeprefix('-'))} << {_number(bits)}"
        first = f"(u64{{~({shifted})}} + 1)" if one.startswith("-") else f"u64{{{shifted}}}"
        return self._summed(target, carries, [first, self.addend(other)])

    def shift_add_high(self, target: str, low: str, other: str, high: str, bits: str, carry: str = "!PT") -> str:
        shifted = f"static_cast<u32>(pair({self.word(low)}, {self.word(high)}) >> {32 - _number(bits)})"
        return self.put(target, f"{shifted} + {self.word(other)} + {self.condition(carry)}")

    def shift_right_wide(self, target: str, low: str, bits: str, high: str) -> str:
        pair = f"pair({self.word(low)}, {self.word(high)})"
        return self.put(target, f"static_cast<u32>(shifted_right({pair}, {self.word(bits)}))")

    def shift_right(self, target: str, low: str, bits: str, high: str) -> str:
        if low != "RZ":
            raise UnknownCodeError(low)
        return self.put(target, f"static_cast<u32>(shifted_right({self.word(high)}, {self.word(bits)}))")

    def shift_left_high(self, target: str, low: str, bits: str, high: str) -> str:
        pair = f"pair({self.word(low)}, {self.word(high)})"
        return self.put(target, f"static_cast<u32>(shifted_left({pair}, {self.word(bits)}) >> 32)")

    def shift_left(self, target: str, low: str, bits: str, high: str) -> str:
        if high != "RZ":
            raise UnknownCodeError(high)
        return self.put(target, f"static_cast<u32>(shifted_left({self.word(low)}, {self.word(bits)}))")

    def logic(self, target: str, *rest: str) -> str:
        """By the table of its three inputs; a predicate before the target: whether any bit is set, or the last one."""
        operands = [target, *rest]
        truth = operands.pop(0) if _is_target(target) else ""
        target, one, other, third, table, condition = operands
        if not truth and condition not in ("!PT", "!UPT"):
            raise UnknownCodeError(condition)
        expression = logic_of_tables()[_number(table)]
        inputs = dict(zip("abc", map(self.word, (one, other, third)), strict=True))
        value = re.sub("[abc]", lambda letter: inputs[letter[0]], expression)
        done = f"const u32 bits = {value}; {self.put(target, 'bits')}"
        return f"{done} {self.set(truth, f'bits != 0 || {self.condition(condition)}')}" if truth else done

    def logic_of_predicates(self, target: str, second: str, *rest: str) -> str:
        """Of constants only: then the table is read at one place."""
        if second != "PT" or rest[:3] != ("PT", "PT", "PT"):
            raise UnknownCodeError(rest)
        return self.set(target, "true" if _number(rest[3]) >> 7 & 1 else "false")

    def select(self, target: str, one: str, other: str, condition: str) -> str:
        return self.put(target, f"{self.condition(condition)} ? {self.word(one)} : {self.word(other)}")

    def select_wide(self, target: str, one: str, other: str, condition: str) -> str:
        return self.put_wide(target, f"{self.condition(condition)} ? {self.wide(one)} : {self.wide(other)}")

    def least(self, target: str, *rest: str) -> str:
        *unused, one, other, condition = rest
        if unused not in ([], ["PT", "PT"]) or condition not in ("PT", "!PT"):
            raise UnknownCodeError(rest)
        which = "min" if condition == "PT" else "max"
        return self.put(target, f"std::{which}({self.word(one)}, {self.word(other)})")

    def least_wide(self, first: str, second: str, target: str, one: str, other: str, condition: str, last: str) -> str:
        if (first, second, last) != ("PT", "PT", "!PT") or condition not in ("PT", "!PT"):
            raise UnknownCodeError(condition)
        which = "min" if condition == "PT" else "max"
        return self.put_wide(target, f"std::{which}<u64>({self.wide(one)}, {self.wide(other)})")

    def count(self, target: str, operand: str) -> str:
        return self.put(target, f"count_bits({self.word(operand)})")

    def find(self, target: str, operand: str) -> str:
        return self.put(target, f"highest_bit({self.word(operand)})")

    # ---- moves

    def move(self, target: str, operand: str) -> str:
        return self.put(target, self.word(operand))

    def move_wide(self, target: str, operand: str) -> str:
        return self.put_wide(target, self.wide(operand))

    def move_four(self, target: str, operand: str) -> str:
        kind, number = parsed(r"(UR)(\d+)", target).groups()
        bank, offset = parsed(r"c\[0x(\d)\]\[(0x[0-9a-f]+)\]", operand).groups()
        words = [self.constant(int(bank), int(offset, 16) + 4 * n, 1 if n else 4) for n in range(4)]
        self.register(kind, number, 4)
        return " ".join(f"{self.register(kind, str(int(number) + n))} = {word};" for n, word in enumerate(words))

    def move_halves(self, target: str, one: str, other: str, high: str, low: str) -> str:
        """A multiplication of nothing, which stands for a constant."""
        if (one, other) != ("-RZ", "RZ"):
            raise UnknownCodeError(one)
        bits = int.from_bytes(struct.pack("<ee", float(low), float(high)), "little")
        return self.put(target, f"{bits:#x}u")

    def load_constant(self, target: str, operand: str) -> str:
        """Where the place is computed, it is that of the shared bytes."""
        if match := re.fullmatch(r"c\[0x0\]\[(R\d+)\+(0x[0-9a-f]+)\]", operand):
            (known,) = (offset for offset, word in self._words.items() if word == SHARED)
            check = f"if ({self.word(match[1])} + {match[2]}u != {known:#x}u) trap();"
            return f"{check} {self.put(target, SHARED)}"
        return self.move(target, operand)

    def special(self, target: str, operand: str) -> str:
        return self.put(target, SPECIAL[operand])

    def special_wide(self, target: str, operand: str) -> str:
        return self.put_wide(target, SPECIAL[operand])

    def ballot(self, target: str, *rest: str) -> str:
        if rest not in (("UPT", "PT"), ("PT", "PT")):
            raise UnknownCodeError(rest)
        return self.put(target, "1u << lane()")

    def shuffle(self, *_: str) -> str:
        """Never reached: only a whole warp goes there."""
        return "trap();"

    # ---- memory

    def load_shared(self, target: str, place: str) -> str:
        return self.put(target, f"shared_word({self.place(place)})")

    def load_shared_wide(self, target: str, place: str) -> str:
        return self.put_wide(target, f"shared<u64>({self.place(place)})")

    def store_shared(self, place: str, value: str) -> str:
        return f"shared<u32>({self.place(place)}) = {self.word(value)};"

    def store_shared_wide(self, place: str, value: str) -> str:
        return f"shared<u64>({self.place(place)}) = {self.wide(value)};"

    def replace_shared(self, target: str, place: str, expected: str, value: str) -> str:
        change = f"replaced(shared<u64>({self.place(place)}), {self.wide(expected)}, {self.wide(value)})"
        return self.set(target, change) if _is_target(target) else self.put_wide(target, change)

    def load(self, target: str, address: str) -> str:
        return self._taken(target, f"global<Vector>({self.address(address)})")

    def load_written(self, target: str, address: str) -> str:
        return self._taken(target, f"emulated_read(&global<Vector>({self.address(address)}))")

    def _taken(self, target: str, vector: str) -> str:
        return f"take(&{self.four(target)}, {vector});"

    def store(self, address: str, value: str) -> str:
        return f"global<Vector>({self.address(address)}) = vector(&{self.four(value)});"

    def add_global(self, address: str, value: str) -> str:
        return f"global<u32>({self.address(address)}) += {self.word(value)};"

    def add_global_wide(self, address: str, value: str) -> str:
        return f"global<u64>({self.address(address)}) += {self.wide(value)};"

    def least_global_wide(self, address: str, value: str) -> str:
        return f"atomicMin(&global<u64>({self.address(address)}), {self.wide(value)});"

    def replace_global(self, condition: str, target: str, address: str, expected: str, value: str) -> str:
        if condition != "PT":
            raise UnknownCodeError(condition)
        place = f"&global<u64>({self.address(address)})"
        return self.put_wide(target, f"atomicCAS({place}, {self.wide(expected)}, {self.wide(value)})")

    # ---- arithmetic

    def fused(self, target: str, one: str, other: str, third: str) -> str:
        value = f"__fmaf_rn({self.single(one)}, {self.single(other)}, {self.single(third)})"
        return self.put(target, f"bits_of({value})")

    def fused_double(self, target: str, one: str, other: str, third: str) -> str:
        values = ", ".join(f"same_bits<double>({self.wide(it)})" for it in (one, other, third))
        return self.put_wide(target, f"same_bits<u64>(__fma_rn({values}))")

    def add_single(self, target: str, one: str, other: str) -> str:
        return self.put(target, f"bits_of({self.single(one)} + {self.single(other)})")

    def multiply_single(self, target: str, one: str, other: str) -> str:
        return self.put(target, f"bits_of({self.single(one)} * {self.single(other)})")

    def multiply_toward_zero(self, target: str, one: str, other: str) -> str:
        return self.put(target, f"bits_of(toward_zero(double{{{self.single(one)}}} * {self.single(other)}))")

    def at_least_single(self, target: str, second: str, one: str, other: str, condition: str) -> str:
        if (second, condition) != ("PT", "PT"):
            raise UnknownCodeError(condition)
        return self.set(target, f"!({self.single(one)} < {self.single(other)})")

    def sine(self, target: str, operand: str) -> str:
        """Of turns, not of radians."""
        return self.put(target, f"bits_of(sine_of_turns({self.single(operand)}))")

    def logarithm(self, target: str, operand: str) -> str:
        return self.put(target, f"bits_of(special_log({self.single(operand)}))")

    def root(self, target: str, operand: str) -> str:
        return self.put(target, f"bits_of(special_root({self.single(operand)}))")

    def reciprocal(self, target: str, operand: str) -> str:
        return self.put(target, f"bits_of(1 / {self.single(operand)})")

    def real_of(self, target: str, operand: str) -> str:
        return self.put(target, f"bits_of(upward({self.word(operand)}))")

    def whole_of(self, target: str, operand: str) -> str:
        return self.put(target, f"whole({self.single(operand)})")

    def tensor_halves(self, target: str, left: str, right: str, sums: str) -> str:
        start = int(left[1:])
        operands = f"R[{start}], R[{start + 1}], {self.word(right)}"
        return self._tensor("float", target, sums, 4, operands)

    def tensor_bytes(self, target: str, left: str, right: str, sums: str) -> str:
        """The larger form of newer machines is given nothing in its other half."""
        operands = f"{self.word(left.removesuffix('.ROW'))}, {self.word(right.removesuffix('.COL'))}"
        return self._tensor("int", target, sums, 2, operands)

    def _tensor(self, kind: str, target: str, sums: str, count: int, operands: str) -> str:
        start, source = int(target[1:]), int(sums[1:])
        taken = ", ".join(f"same_bits<{kind}>(R[{source + n}])" for n in range(count))
        put = " ".join(f"R[{start + n}] = same_bits<u32>(sums[{n}]);" for n in range(count))
        return f"{kind} sums[] = {{{taken}}}; tensor(sums, {operands}); {put}"

    # ---- ways

    def jump(self, *rest: str) -> str:
        *conditions, label = rest
        guards = "".join(f"if ({self.condition(it)}) " for it in conditions)
        return f"{guards}goto {parsed(JUMP, label)[1]};"

    def leave(self) -> str:
        return "return;"

    def wait(self, number: str) -> str:
        if number != "0x0":
            raise UnknownCodeError(number)
        return "barrier();"

    def refuse(self, _: str) -> str:
        return "trap();"

    def nothing(self, *_: str) -> str:
        """For warps that diverge, and there are none."""
        return ""


def _left(lines: list[Instruction | str]) -> list[int]:
    """The registers that are changed before anything writes them, if a kernel is made of such ones."""
    written, left = set[str](), list[int]()
    for line in lines:
        if isinstance(line, Instruction) and line.operands:
            target, *sources = line.operands
            if line.name == "LOP3.LUT" and target in sources and target not in written:
                left.append(int(target[1:]))
            written.add(target)
    return left if len(left) >= KEPT else []


def _compare(compare: str, kind: str, join: str, *, extended: bool) -> Callable[..., str]:
    sign = COMPARISONS[compare]

    def statement(code: _Code, target: str, second: str, one: str, other: str, *conditions: str) -> str:
        if second not in ("PT", "UPT") or len(conditions) != 1 + extended:
            raise UnknownCodeError(conditions)
        read = code.wide if "64" in kind else code.word
        number = {"": "static_cast<int>({})", "U32": "{}", "U64": "{}", "S64": "static_cast<long long>({})"}[kind]
        left, right = (number.format(read(it)) for it in (one, other))
        result = f"({left} {sign} {right})"
        if extended:  # after the low words: these decide where the high words are equal
            low = code.condition(conditions[1])
            strict = sign.removesuffix("=") if sign in ("<=", ">=") else sign
            result = {
                "EQ": f"({left} == {right} && {low})",
                "NE": f"({left} != {right} || {low})",
            }.get(compare, f"({left} {strict} {right} || ({left} == {right} && {low}))")
        return code.set(target, f"{result} {join} {code.condition(conditions[0])}")

    return statement


@functools.cache
def _table() -> dict[str, Callable[..., str]]:
    """What is known, by its full name."""
    code = _Code
    table: dict[str, Callable[..., str]] = {}
    for compare, kind, (name, join), extended in itertools.product(
        COMPARISONS, ("", "U32", "U64", "S64"), {"AND": "&&", "OR": "||"}.items(), (False, True)
    ):
        parts = [compare, *([kind] if kind else []), name, *(["EX"] if extended else [])]
        if not (extended and "64" in kind):
            table[f"ISETP.{'.'.join(parts)}"] = _compare(compare, kind, join, extended=extended)
            table[f"UISETP.{'.'.join(parts)}"] = _compare(compare, kind, join, extended=extended)
    functions: dict[str, Callable[..., str]] = {
        "IADD3 UIADD3": code.add,
        "IADD3.X UIADD3.X": code.add_carried,
        "VIADD": code.add_two,
        "IADD.64": code.add_wide,
        "IMAD IMAD.MOV IMAD.MOV.U32 IMAD.IADD IMAD.U32 IMAD.SHL.U32 UIMAD": code.multiply,
        "IMAD.X": code.multiply_carried,
        "IMAD.WIDE.U32 UIMAD.WIDE.U32": code.multiply_wide,
        "IMAD.HI.U32": code.multiply_high,
        "LEA ULEA": code.shift_add,
        "LEA.HI LEA.HI.X": code.shift_add_high,
        "SHF.R.U64": code.shift_right_wide,
        "SHF.R.U32.HI": code.shift_right,
        "SHF.L.U64.HI": code.shift_left_high,
        "SHF.L.U32": code.shift_left,
        "LOP3.LUT ULOP3.LUT": code.logic,
        "PLOP3.LUT": code.logic_of_predicates,
        "SEL": code.select,
        "SEL.64": code.select_wide,
        "VIMNMX.U32": code.least,
        "IMNMX.U64": code.least_wide,
        "POPC UPOPC": code.count,
        "FLO.U32 UFLO.U32": code.find,
        "MOV UMOV ULDC LDCU REDUX.SUM": code.move,
        "MOV.64 UMOV.64 LDC.64 ULDC.64 LDCU.64": code.move_wide,
        "LDCU.128": code.move_four,
        "HFMA2.MMA HFMA2": code.move_halves,
        "LDC": code.load_constant,
        "S2R S2UR CS2R.32": code.special,
        "CS2R": code.special_wide,
        "VOTEU.ANY VOTE.ANY": code.ballot,
        "SHFL.BFLY": code.shuffle,
        "LDS LDS.U": code.load_shared,
        "LDS.64 LDS.U.64": code.load_shared_wide,
        "STS": code.store_shared,
        "STS.64": code.store_shared_wide,
        "ATOMS.CAST.SPIN.64": code.replace_shared,
        "LDG.E.NA.128.CONSTANT LDG.E.NA.128.CONSTANT.SYS": code.load,
        "LDG.E.EF.128 LDG.E.EF.128.SYS": code.load_written,
        "STG.E.EF.128 STG.E.EF.128.SYS": code.store,
        "REDG.E.ADD.STRONG.GPU RED.E.ADD.STRONG.GPU": code.add_global,
        "REDG.E.ADD.64.STRONG.GPU RED.E.ADD.64.STRONG.GPU": code.add_global_wide,
        "REDG.E.MIN.64.STRONG.GPU RED.E.MIN.64.STRONG.GPU": code.least_global_wide,
        "ATOMG.E.CAS.64.STRONG.GPU": code.replace_global,
        "FFMA": code.fused,
        "DFMA": code.fused_double,
        "FADD": code.add_single,
        "FMUL": code.multiply_single,
        "FMUL.RZ": code.multiply_toward_zero,
        "FSETP.GEU.AND": code.at_least_single,
        "MUFU.SIN": code.sine,
        "MUFU.LG2": code.logarithm,
        "MUFU.RSQ": code.root,
        "MUFU.RCP": code.reciprocal,
        "I2F.U32.RP": code.real_of,
        "F2I.FTZ.U32.TRUNC.NTZ": code.whole_of,
        "HMMA.1688.F32": code.tensor_halves,
        "IMMA.8816.S8.S8 IMMA.16816.S8.S8": code.tensor_bytes,
        "BRA BRA.U CALL.REL.NOINC": code.jump,
        "EXIT": code.leave,
        "BAR.SYNC.DEFER_BLOCKING BAR.SYNC": code.wait,
        "BPT.TRAP": code.refuse,
        "NOP BSSY BSYNC BSSY.RECONVERGENT BSYNC.RECONVERGENT BSSY.RELIABLE BSYNC.RELIABLE BREAK.RELIABLE "
        "BMOV.32.CLEAR WARPSYNC WARPSYNC.ALL YIELD": code.nothing,
    }
    for names, function in functions.items():
        table |= dict.fromkeys(names.split(), function)
    return table
