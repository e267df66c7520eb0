"""The translators of shipped code: what they do not know is an error, and never left out."""

import itertools

import pytest

from scrubber.cuda.images import FOLDER
from tests.fakes.cuda.translation import ptx, sass
from tests.fakes.cuda.translation.program import UnknownCodeError

IMAGE = (FOLDER / "scrub.sm_90.cubin").read_bytes()


def machine_code(line: str, omissible=None) -> str:
    return sass.translated(IMAGE, f".text.invert:\n/*0010*/ {line} ;\n", omissible or {})


def portable(line: str) -> str:
    registers = ".reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n.reg .pred %p<9>;\n"
    return ptx.translated(f".visible .entry write(\n.param .u64 write_param_0\n)\n{{\n{registers}{line}\n}}\n")


def test_known_code_is_translated():
    assert "R[3]" in machine_code("@!P0 IADD3 R3, P1, R4.reuse, -R5, RZ")
    assert "rd[2]" in portable("@%p1 add.s64 %rd2, %rd1, -16;")


@pytest.mark.parametrize(
    "line",
    [
        "FROB R1, R2",
        "IADD3.FROB R1, R2, R3, R4",
        "IADD3 R1, R2, R3",
        "IADD3 R1, R2, R3, R4, R5",
        "IADD3 R1, |R2|, R3, R4",
        "IADD3.X R1, -R2, R3, R4, P0, !PT",
        "IADD3 R256, R2, R3, R4",
        "IMAD.X R1, R2, R3, -R4, P0",
        "LOP3.LUT R1, R2, R3, R4, 0x96, P0",
        "LOP3.LUT R1, R2, R3, R4, R5, !PT",
        "SHF.R.U32.HI R1, R2, 0x3, R4",
        "SHF.R.W.U32.HI R1, RZ, 0x3, R4",
        "ISETP.NE.AND P0, P1, R2, R3, PT",
        "ISETP.NE.XOR P0, PT, R2, R3, PT",
        "ISETP.NE.AND.EX P0, PT, R2, R3, PT",
        "LDC R1, c[0x0][0x30]",
        "LDC R1, c[0x3][0x210]",
        "LDS.U8 R1, [R2]",
        "LDS R1, [R2.X8]",
        "LDG.E.EF.128 R4, desc[UR4][R2.32]",
        "LDG.E.EF.64 R4, desc[UR4][R2.64]",
        "S2R R1, SR_TID.Y",
        "VOTEU.ANY UR4, UPT, P0",
        "HFMA2.MMA R1, R2, R3, 0, 0",
        "BAR.SYNC 0x1",
        "BRX R2 -0x10",
        "RET.REL.NODEC R2 `(invert)",
    ],
)
def test_unknown_machine_code_is_refused_with_its_line(line):
    with pytest.raises(UnknownCodeError, match="invert at 0010: "):
        machine_code(line)


def test_a_line_that_is_no_instruction_is_refused():
    with pytest.raises(UnknownCodeError, match="frob"):
        sass.translated(IMAGE, ".text.invert:\n.frob 1\n")


@pytest.mark.parametrize(
    "line",
    [
        "frob.b32 %r1, %r2;",
        "add.sat.s32 %r1, %r2, %r3;",
        "add.s16 %r1, %r2, %r3;",
        "add.s32 %r1, %r2;",
        "add.s32 %r1, %r2, %q3;",
        "ld.global.v2.u64 {%rd1, %rd2}, [%rd3];",
        "ld.param.u32 %r1, [write_param_0];",
        "ld.param.u64 %rd1, [write_param_9];",
        "mov.u32 %r1, %tid.y;",
        "setp.gt.s32 %p1, %r1, %r2;",
        "bar.sync 1;",
        "bra.uni",
    ],
)
def test_unknown_portable_code_is_refused_with_its_line(line):
    with pytest.raises(UnknownCodeError, match="write: "):
        portable(line)


def test_each_table_of_three_inputs_has_its_expression():
    logic = sass.logic_of_tables()
    for table, (number, bits) in itertools.product(range(256), enumerate(itertools.product((0, 1), repeat=3))):
        value = eval(logic[table].replace("u", ""), {}, dict(zip("abc", bits, strict=True)))  # noqa: S307 -- ours
        assert value & 1 == table >> number & 1


def test_a_planted_mutant_that_reads_otherwise_is_refused():
    line = "LOP3.LUT R41, R12, UR4, R5, 0x96, !PT"
    assert "included(0x10)" in machine_code(line, {("invert", 0x10): line})
    with pytest.raises(UnknownCodeError, match="mend this mutant"):
        machine_code(line, {("invert", 0x10): line.replace("R41", "R42")})
