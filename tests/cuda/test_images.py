"""The compiled kernels that are shipped: as their manifest says, and the right one for each GPU."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy import compile_kernels
from deploy.compile_kernels import ARCHITECTURES, CompilingError
from scrubber.cuda import clearing, images
from scrubber.cuda.images import FOLDER, PORTABLE, binary, chosen, image_for, present
from tests.fakes.cuda.translation.elf import Elf

ROOT = Path(__file__).parents[2]
MANIFEST = json.loads((FOLDER / compile_kernels.MANIFEST).read_text())
CUBINS = [binary(*version) for version in ARCHITECTURES]
OVER_MEMORY = {"write", "check", "invert"}
IN_SHARED = {"scratch", "plant", "listen"}
IN_REGISTERS = {"registers", "plant_registers", "listen_registers"}
KERNELS = OVER_MEMORY | IN_SHARED | IN_REGISTERS | {"exact"}

CUDA_MACHINE = 190  # in the header of an ELF file
REGISTERS, FRAME, LEAST_STACK = 0x2F, 0x11, 0x12  # attributes of a kernel in section .nv.info
RESERVED_SHARED = 1024  # bytes a block that newer architectures keep for themselves, and show as the kernel's


def nvrtc() -> Path | None:
    try:
        return compile_kernels.library([*map(Path, sys.path), ROOT / "build" / "nvrtc"])
    except CompilingError:
        return None


NVRTC = nvrtc()
needs_nvrtc = pytest.mark.skipif(NVRTC is None, reason="NVRTC is not here: make kernels installs it")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not here")


@pytest.fixture(params=CUBINS)
def cubin(request):
    return Elf((FOLDER / request.param).read_bytes())


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_manifest_is_of_the_source_as_it_is():
    """Red? Then the kernels were changed: make kernels ARGS=--accept."""
    sources = {path.name: digest(path) for path in FOLDER.iterdir() if path.suffix in {".cu", ".cuh"}}
    assert MANIFEST["sources"] == sources
    assert MANIFEST["options"] == list(compile_kernels.OPTIONS)


def test_the_images_match_the_manifest():
    made = {path.name for path in FOLDER.iterdir()} - {*MANIFEST["sources"], compile_kernels.MANIFEST}
    assert made == set(MANIFEST["images"]) == {*CUBINS, PORTABLE}
    for name, answers in MANIFEST["images"].items():
        assert answers == {
            "architecture": "compute_75" if name == PORTABLE else name.removeprefix("scrub.").removesuffix(".cubin"),
            "sha256": digest(FOLDER / name),
            "size": (FOLDER / name).stat().st_size,
        }


def test_the_compiler_is_the_one_that_is_pinned():
    pinned = re.search(r'"nvidia-cuda-nvrtc-cu12==([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert pinned
    assert MANIFEST["compiler"].endswith(f"V{pinned[1]}")


@pytest.mark.parametrize("version", ARCHITECTURES)
def test_machine_code_is_for_the_architecture_in_its_name(version):
    elf = Elf((FOLDER / binary(*version)).read_bytes())
    assert elf.data.startswith(b"\x7fELF")
    assert (elf.machine, elf.architecture) == (CUDA_MACHINE, version[0] * 10 + version[1])


def test_every_kernel_is_in_every_image(cubin):
    assert set(cubin.symbols()) >= KERNELS
    assert {name.removeprefix(".text.") for name in cubin.headers if name.startswith(".text.")} == KERNELS


def test_the_portable_code_has_every_kernel():
    text = (FOLDER / PORTABLE).read_text()
    assert re.findall(r"^\.target (\S+)$", text, re.MULTILINE) == ["sm_75"]
    assert set(re.findall(r"\.entry (\w+)\(", text)) == KERNELS


def test_no_kernel_keeps_anything_in_local_memory(cubin):
    """Neither spilled registers nor a stack: local memory would be more memory that no scrub reaches."""
    assert cubin.answers(FRAME) == dict.fromkeys(KERNELS, 0)
    assert cubin.answers(LEAST_STACK) == dict.fromkeys(KERNELS, 0)


def test_register_counts_fit_the_purpose_of_each_kernel(cubin):
    registers = cubin.answers(REGISTERS)
    assert [name for name in KERNELS - IN_REGISTERS if registers[name] > 64] == []  # 65536 of them / 1024 threads
    assert [name for name in IN_REGISTERS if registers[name] < 249] == []  # given out by eight: 256 a thread


def test_kernels_for_shared_memory_take_none_of_it_for_themselves(cubin):
    reserved = RESERVED_SHARED if cubin.architecture >= 90 else 0
    own = {name: cubin.size(f".nv.shared.{name}") - reserved for name in IN_SHARED}
    assert own == dict.fromkeys(IN_SHARED, 0)


@needs_nvcc
def test_another_compiler_warns_of_nothing_and_spills_nothing(tmp_path):
    command = ["nvcc", "-cubin", "-arch=sm_90", "-std=c++17", "-Werror", "all-warnings", "-Xptxas", "-v,-Werror"]
    command += ["-Xcompiler", "-Wall,-Wextra", "-o", str(tmp_path / "scrub.cubin"), str(FOLDER / "scrub.cu")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spills = re.findall(r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes", said, re.DOTALL)
    assert sorted(spills) == sorted((name, "0", "0") for name in KERNELS)


@pytest.fixture
def folder(tmp_path):
    """Sources and manifest, in another place."""
    return shutil.copytree(FOLDER, tmp_path / "kernels", ignore=shutil.ignore_patterns("*.cubin", "*.ptx"))


@pytest.fixture
def compiled(monkeypatch):
    """What the compiler makes of the source: the shipped images, as the wheel of tests/deploy/test_release.py shows."""
    made = {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.name not in MANIFEST["sources"]}
    monkeypatch.setattr(compile_kernels, "library", lambda _: Path())
    monkeypatch.setattr(compile_kernels, "compiled", lambda *_: made)


@pytest.mark.usefixtures("compiled")
def test_images_are_written_beside_their_source(folder):
    compile_kernels.build(folder, accept=True)
    assert {path.name: digest(path) for path in folder.iterdir()} == {
        path.name: digest(path) for path in FOLDER.iterdir()
    }


@pytest.mark.usefixtures("compiled")
def test_other_images_than_those_of_the_manifest_are_not_built(folder):
    manifest = folder / compile_kernels.MANIFEST
    manifest.write_text(manifest.read_text().replace(MANIFEST["images"][PORTABLE]["sha256"], "0" * 64))
    with pytest.raises(CompilingError, match="are not those of their manifest"):
        compile_kernels.build(folder)
    assert list(folder.glob("scrub.*")) == [folder / compile_kernels.SOURCE]


def test_an_image_of_another_release_is_removed(folder):
    """A wheel would carry it, and its architecture would run it."""
    for name in MANIFEST["images"]:
        shutil.copy(FOLDER / name, folder)
    other = folder / binary(8, 7)
    other.write_bytes(b"of an earlier release")
    compile_kernels.build(folder)
    assert not other.exists()
    assert {path.name for path in folder.iterdir()} == {path.name for path in FOLDER.iterdir()}


def test_a_checkout_without_images_says_how_to_compile_them():
    with pytest.raises(ValueError, match="the kernels are not compiled in this checkout; run make kernels"):
        chosen((9, 0), [])


@needs_nvrtc
@pytest.mark.parametrize("line", ["int x = ;", "__device__ void f() { int unused; }"], ids=["error", "warning"])
def test_images_with_compiler_warnings_are_not_shipped(line):
    assert NVRTC
    sources = compile_kernels.read_sources() | {compile_kernels.SOURCE: f"{line}\n"}
    with pytest.raises(CompilingError, match=r"cannot compile the kernels for sm_75: .*scrub\.cu\(1\)"):
        compile_kernels.compiled(NVRTC, sources)


def test_without_a_compiler_the_message_says_how_to_install(tmp_path):
    with pytest.raises(CompilingError, match="make kernels"):
        compile_kernels.library([tmp_path])


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((8, 7), "scrub.sm_86.cubin"),
        ((9, 0), "scrub.sm_90.cubin"),
        ((10, 1), "scrub.sm_100.cubin"),
        ((11, 0), "scrub.ptx"),
    ],
)
def test_a_device_gets_its_nearest_older_code(capability, name):
    assert image_for(capability) == FOLDER / name
    assert image_for(capability).is_file()


def test_the_memory_on_each_shipped_chip_is_known():
    """Not of a capability for which the driver compiles the portable form. Each 10.x has tensor memory."""
    numbers = [re.fullmatch(r"scrub\.sm_(\d+)(\d)\.cubin", name) for name in present()]
    shipped = {(int(number[1]), int(number[2])) for number in numbers if number}
    assert shipped == {*clearing.BESIDE}
    every = [(major, minor) for major in range(7, 15) for minor in range(10)]
    assert {each for each in every if clearing.UNKNOWN not in clearing.not_overwritten(each)} == shipped
    assert {major for major, minor in every if clearing.TENSOR in clearing.not_overwritten((major, minor))} == {10}
    assert all(clearing.TENSOR in clearing.not_overwritten((10, minor)) for minor in range(10))


@pytest.mark.parametrize("capability", [(7, 0), (7, 2), (6, 1), (0, 0)])
def test_a_device_older_than_turing_is_refused(capability):
    numbers = ".".join(map(str, capability))
    with pytest.raises(ValueError, match=rf"^no kernels for compute capability {numbers}: Turing \(7\.5\) or newer"):
        image_for(capability)


versions = st.tuples(st.integers(8, 15), st.integers(0, 9))


@given(capability=versions, present=st.sets(versions))
def test_code_has_the_devices_major_and_no_higher_minor(capability, present):
    fitting = [version for version in present if version[0] == capability[0] and version[1] <= capability[1]]
    names = [images.PORTABLE, *(binary(*version) for version in present)]
    assert chosen(capability, names) == (binary(*max(fitting)) if fitting else PORTABLE)


def test_an_installation_without_the_portable_form_says_so():
    with pytest.raises(ValueError, match=r"13\.0: this installation lacks scrub\.ptx"):
        chosen((13, 0), ["scrub.sm_90.cubin"])
