"""The portable code in C++ for the emulated GPU.

Every instruction becomes one statement. Whatever is not in the table at the end, with exactly the operands that its
function takes, is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tests.fakes.cuda.translation.program import Argument, Kernel, UnknownCodeError, parsed, program

SPECIAL = {
    "%tid.x": "threadIdx.x",
    "%ntid.x": "blockDim.x",
    "%ctaid.x": "blockIdx.x",
    "%nctaid.x": "gridDim.x",
    "%smid": "emulated_unit()",
    "%dynamic_smem_size": "emulated_shared_bytes()",
}
KINDS = {"pred": "bool", "b32": "u32", "b64": "u64", "f32": "float", "f64": "double"}
SIZES = {"b8": 1, "u32": 4, "u64": 8}
NUMBERS = {"u32": "u32", "b32": "u32", "s32": "int", "u64": "u64", "b64": "u64", "s64": "long long"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "ge": ">="}
DYNAMIC = "words"
LEFT, FIRST_LEFT = "left", 100  # the registers that hold what an earlier kernel left there

ENTRY = re.compile(
    r"\.visible \.entry (\w+)\((.*?)\)(?:\s*\.(?:maxntid|minnctapersm) [\d, ]+)*(.*?)(?=\.visible|\Z)", re.DOTALL
)
PARAMETER = re.compile(r"\.param \.u(32|64) (\w+)")
VARIABLE = re.compile(r"\.shared \.align (\d+) \.(b8|u32|u64) (\w+)(?:\[(\d+)\])?;")
REGISTERS = re.compile(r"\.reg \.(\w+)\s+%?(\w+?)(?:<(\d+)>)?;")
LABEL = re.compile(r"\$?(\w+):")
INSTRUCTION = re.compile(r"(?:@(!?)(%?\w+)\s+)?([a-z][\w.:]*)\s*(.*?);")
IGNORED = re.compile(r'//|\.pragma "nounroll";|[{}]?$')


def translated(text: str) -> str:
    """A program in C++."""
    shared = {match[3]: match for match in VARIABLE.finditer(text)}
    return program(_Code(name, parameters, body, shared).kernel() for name, parameters, body in ENTRY.findall(text))


class _Code:
    """The code of one kernel: its operands, and what each instruction does with them."""

    def __init__(self, name: str, parameters: str, body: str, shared: dict[str, re.Match[str]]) -> None:
        self._name = name
        self._body = body
        self._places: dict[str, int] = {}  # of variables in shared memory, from where the kernel's own begins
        self._own = 0
        for variable in re.findall(r"\b_ZZ\w+", body):
            if variable not in self._places:
                align, kind, _, count = shared[variable].groups()
                self._places[variable] = -(-self._own // int(align)) * int(align)
                self._own = self._places[variable] + SIZES[kind] * int(count or 1)
        self._arguments: dict[str, Argument] = {}
        end = 0
        for bits, parameter in PARAMETER.findall(parameters):
            size = int(bits) // 8
            offset = -(-end // size) * size
            self._arguments[parameter], end = Argument(offset, size), offset + size

    def kernel(self) -> Kernel:
        arguments = tuple(self._arguments.values())
        return Kernel(self._name, self._own, arguments, (*self._declarations(), *self._statements()))

    def _declarations(self) -> Iterator[str]:
        for kind, name, count in REGISTERS.findall(self._body):
            yield f"  [[maybe_unused]] {KINDS[kind]} {name}{f'[{count}]' if count else ''} = {{}};"
            if count:
                yield f"  begin({name});"
            if name == LEFT:
                yield f"  std::fill_n({name} + {FIRST_LEFT}, emulated_leftovers(), arguments.at<u32>(0));"

    def _statements(self) -> Iterator[str]:
        for text in map(str.strip, self._body.splitlines()):
            if label := LABEL.fullmatch(text):
                yield f"{label[1]}:;"
            elif not (IGNORED.match(text) or REGISTERS.fullmatch(text) or VARIABLE.fullmatch(text)):
                yield f"  {self._statement(text)}"

    def _statement(self, text: str) -> str:
        try:
            sign, guard, name, operands = parsed(INSTRUCTION, text).groups(default="")
            condition = f"if ({sign}{self.name(guard)}) " if guard else ""
            return f"{condition}{{ {self._deed(name, operands)} }}"
        except (KeyError, TypeError, ValueError, UnknownCodeError) as error:
            raise UnknownCodeError(f"{self._name}: {text}: {error!r}") from error

    def _deed(self, name: str, operands: str) -> str:
        parts = re.findall(r"\{.*?\}|\[.*?\]|[^\s,]+", operands)
        for pattern, function in TABLE.items():
            if match := re.fullmatch(pattern, name):
                return function(self, *match.groups(), *parts)
        raise UnknownCodeError(name)

    # ---- operands

    def name(self, operand: str) -> str:
        """A register."""
        if match := re.fullmatch(r"(?:%(r|rd|f|fd|p)|(left))(\d+)", operand):
            return f"{match[1] or match[2]}[{match[3]}]"
        if operand in ("nothing", "same"):
            return operand
        raise UnknownCodeError(operand)

    def value(self, operand: str, bits: str = "64") -> str:
        if operand in SPECIAL:
            return SPECIAL[operand]
        if re.fullmatch(r"-?\d+", operand):
            return (
                f"{int(operand) & (1 << int(bits)) - 1:#x}ull" if bits == "64" else f"{int(operand) & 0xFFFFFFFF:#x}u"
            )
        if match := re.fullmatch(r"0f([0-9A-F]{8})", operand):
            return f"real(0x{match[1]}u)"
        if match := re.fullmatch(r"0d([0-9A-F]{16})", operand):
            return f"same_bits<double>(u64{{0x{match[1]}ull}})"
        if operand == DYNAMIC:
            return "u64{OWN}"
        if operand in self._places:
            return f"u64{{{self._places[operand]}}}"
        return self.name(operand)

    def place(self, operand: str) -> str:
        """An address in shared memory."""
        return f"OWN, static_cast<u32>({self.value(operand[1:-1])})"

    def address(self, operand: str) -> str:
        """An address in the memory of the device, perhaps with an offset."""
        register, _, offset = operand[1:-1].partition("+")
        return self.name(register) + (f" + {int(offset) & (2**64 - 1):#x}ull" if offset else "")

    def several(self, operand: str) -> list[str]:
        return [self.name(part) for part in re.split(r",\s*", operand[1:-1])]

    def put(self, target: str, value: str) -> str:
        return f"{self.name(target)} = {value};"

    # ---- integers

    def two(self, operation: str, _: str, bits: str, target: str, one: str, other: str) -> str:
        sign = {"add": "+", "sub": "-", "and": "&", "or": "|", "xor": "^", "mul.lo": "*"}[operation]
        return self.put(target, f"{self.value(one, bits)} {sign} {self.value(other, bits)}")

    def predicates(self, operation: str, target: str, one: str, other: str) -> str:
        sign = {"and": "&&", "or": "||"}[operation]
        return self.put(target, f"{self.name(one)} {sign} {self.name(other)}")

    def one(self, operation: str, bits: str, target: str, operand: str) -> str:
        return self.put(target, {"not": "~", "neg": "-"}[operation] + self.value(operand, bits))

    def shift(self, direction: str, bits: str, target: str, operand: str, count: str) -> str:
        whole = {"l": "left", "r": "right"}[direction]
        number = "u32" if bits == "32" else "u64"
        shifted = f"shifted_{whole}({self.value(operand, bits)}, {self.value(count, '32')})"
        return self.put(target, f"static_cast<{number}>({shifted})")

    def multiply_add(self, target: str, one: str, other: str, third: str) -> str:
        return self.put(target, f"{self.value(one, '32')} * {self.value(other, '32')} + {self.value(third, '32')}")

    def multiply_wide(self, target: str, one: str, other: str) -> str:
        return self.put(target, f"u64{{{self.value(one, '32')}}} * {self.value(other, '32')}")

    def least(self, target: str, one: str, other: str) -> str:
        return self.put(target, f"std::min<u64>({self.value(one)}, {self.value(other)})")

    def insert(self, target: str, one: str, other: str, start: str, count: str) -> str:
        mask = f"{(1 << int(count)) - 1 << int(start):#x}ull"
        return self.put(target, f"({self.value(other)} & ~{mask}) | ({self.value(one)} << {int(start)} & {mask})")

    def count(self, target: str, operand: str) -> str:
        return self.put(target, f"static_cast<u32>(__popcll({self.value(operand)}))")

    def leading_zeros(self, target: str, operand: str) -> str:
        return self.put(target, f"static_cast<u32>(std::countl_zero({self.value(operand)}))")

    def compare(self, compare: str, kind: str, target: str, one: str, other: str) -> str:
        left, right = (f"static_cast<{NUMBERS[kind]}>({self.value(it, kind[1:])})" for it in (one, other))
        return self.put(target, f"{left} {COMPARISONS[compare]} {right}")

    def select(self, bits: str, target: str, one: str, other: str, condition: str) -> str:
        return self.put(target, f"{self.name(condition)} ? {self.value(one, bits)} : {self.value(other, bits)}")

    # ---- moves

    def move(self, _: str, bits: str, target: str, operand: str) -> str:
        return self.put(target, f"{self.value(operand, bits)}")

    def move_bits(self, target: str, operand: str) -> str:
        """Between registers of words and of numbers."""
        return self.put(target, f"same_bits<std::decay_t<decltype({self.name(target)})>>({self.name(operand)})")

    def narrow(self, target: str, operand: str) -> str:
        return self.put(target, f"static_cast<u32>({self.value(operand)})")

    def widen(self, target: str, operand: str) -> str:
        return self.put(target, f"{self.value(operand, '32')}")

    # ---- memory

    def load_argument(self, bits: str, target: str, operand: str) -> str:
        argument = self._arguments[operand[1:-1]]
        if int(bits) != argument.size * 8:
            raise UnknownCodeError(bits)
        return self.put(target, f"arguments.at<u{bits}>({argument.offset})")

    def load_shared(self, target: str, place: str) -> str:
        return self.put(target, f"shared_word({self.place(place)})")

    def load_shared_wide(self, target: str, place: str) -> str:
        return self.put(target, f"shared<u64>({self.place(place)})")

    def store_shared(self, place: str, operand: str) -> str:
        return f"shared<u32>({self.place(place)}) = static_cast<u32>({self.value(operand)});"

    def store_shared_wide(self, place: str, operand: str) -> str:
        return f"shared<u64>({self.place(place)}) = {self.value(operand)};"

    def load(self, targets: str, address: str) -> str:
        return self._taken(targets, f"global<Vector>({self.address(address)})")

    def load_written(self, targets: str, address: str) -> str:
        return self._taken(targets, f"emulated_read(&global<Vector>({self.address(address)}))")

    def _taken(self, targets: str, vector: str) -> str:
        first, second = self.several(targets)
        return f"const Vector v = {vector}; {first} = v.x; {second} = v.y;"

    def store(self, address: str, operands: str) -> str:
        return f"global<Vector>({self.address(address)}) = {{{', '.join(self.several(operands))}}};"

    def add_atomic(self, where: str, bits: str, target: str, place: str, operand: str) -> str:
        at = f"shared<u{bits}>({self.place(place)})" if where == "shared" else f"global<u{bits}>({self.address(place)})"
        return self.put(target, f"atomicAdd<u{bits}>(&{at}, {self.value(operand, bits)})")

    def xor_atomic(self, target: str, place: str, operand: str) -> str:
        return self.put(target, f"atomicXor(&shared<u64>({self.place(place)}), {self.value(operand)})")

    def least_atomic(self, target: str, address: str, operand: str) -> str:
        return self.put(target, f"atomicMin(&global<u64>({self.address(address)}), {self.value(operand)})")

    def replace(self, target: str, address: str, expected: str, value: str) -> str:
        place = f"&global<u64>({self.address(address)})"
        return self.put(target, f"atomicCAS({place}, {self.value(expected)}, {self.value(value)})")

    # ---- arithmetic

    def fused(self, bits: str, target: str, *factors: str) -> str:
        one, other, third = map(self.value, factors)
        return self.put(target, f"{'__fmaf_rn' if bits == '32' else '__fma_rn'}({one}, {other}, {third})")

    def special(self, function: str, target: str, operand: str) -> str:
        which = {"sin": "sine", "lg2": "log", "rsqrt": "root"}[function]
        return self.put(target, f"special_{which}({self.value(operand)})")

    def tensor_halves(self, targets: str, left: str, right: str, sums: str) -> str:
        return self._tensor("float", targets, sums, [*self.several(left), *self.several(right)])

    def tensor_bytes(self, targets: str, left: str, right: str, sums: str) -> str:
        return self._tensor("int", targets, sums, [*self.several(left), *self.several(right)])

    def _tensor(self, kind: str, targets: str, sums: str, operands: list[str]) -> str:
        taken = ", ".join(f"same_bits<{kind}>({it})" for it in self.several(sums))
        put = " ".join(
            f"{it} = same_bits<std::decay_t<decltype({it})>>(sums[{n}]);" for n, it in enumerate(self.several(targets))
        )
        return f"{kind} sums[] = {{{taken}}}; tensor(sums, {', '.join(operands)}); {put}"

    # ---- ways

    def jump(self, label: str) -> str:
        return f"goto {label.removeprefix('$')};"

    def wait(self, number: str) -> str:
        if number != "0":
            raise UnknownCodeError(number)
        return "barrier();"

    def refuse(self) -> str:
        return "trap();"

    def leave(self) -> str:
        return "return;"


# What is known, by its full name.
TABLE: dict[str, Callable[..., str]] = {
    r"(add|sub|mul\.lo)\.([su])(32|64)": _Code.two,
    r"(and|or|xor)\.(b)(32|64)": _Code.two,
    r"(and|or)\.pred": _Code.predicates,
    r"(not)\.b(32|64)|(neg)\.s(32|64)": lambda code, *rest: _Code.one(code, *[it for it in rest if it]),
    r"sh(l|r)\.[bu](32|64)": _Code.shift,
    r"mad\.lo\.s32": _Code.multiply_add,
    r"mul\.wide\.u32": _Code.multiply_wide,
    r"min\.u64": _Code.least,
    r"bfi\.b64": _Code.insert,
    r"popc\.b64": _Code.count,
    r"clz\.b64": _Code.leading_zeros,
    r"setp\.(eq|ne|lt|ge)\.([su]32|[su]64)": _Code.compare,
    r"selp\.[bu](32|64)": _Code.select,
    r"mov\.([uf])(32|64)": _Code.move,
    r"mov\.b(?:32|64)": _Code.move_bits,
    r"cvt\.u32\.u64": _Code.narrow,
    r"cvt\.u64\.u32|cvta\.to\.global\.u64": _Code.widen,
    r"ld\.param\.u(32|64)": _Code.load_argument,
    r"ld\.volatile\.shared\.u32": _Code.load_shared,
    r"ld\.shared\.u64": _Code.load_shared_wide,
    r"st\.(?:volatile\.)?shared\.u32": _Code.store_shared,
    r"st\.shared\.u64": _Code.store_shared_wide,
    r"ld\.global\.nc\.L1::no_allocate\.v2\.u64": _Code.load,
    r"ld\.global\.cs\.v2\.u64": _Code.load_written,
    r"st\.global\.cs\.v2\.u64": _Code.store,
    r"atom\.(global|shared)\.add\.u(32|64)": _Code.add_atomic,
    r"atom\.shared\.xor\.b64": _Code.xor_atomic,
    r"atom\.global\.min\.u64": _Code.least_atomic,
    r"atom\.global\.cas\.b64": _Code.replace,
    r"fma\.rn\.f(32|64)": _Code.fused,
    r"(sin|lg2|rsqrt)\.approx\.f32": _Code.special,
    r"mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.f16\.f16\.f32": _Code.tensor_halves,
    r"mma\.sync\.aligned\.m8n8k16\.row\.col\.s32\.s8\.s8\.s32": _Code.tensor_bytes,
    r"bra(?:\.uni)?": _Code.jump,
    r"bar\.sync": _Code.wait,
    r"trap": _Code.refuse,
    r"ret": _Code.leave,
}
