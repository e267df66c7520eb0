"""Compile the kernels for every architecture: ``python -m scrubber.cuda.compiling``, or rather ``make kernels``.

It needs the compiler as a library (NVRTC), but neither a toolkit nor a GPU. A 12.x compiler is used on purpose: drivers
of 12.x and of 13.x load what it makes. The same source gives the same bytes, wherever and whenever it is compiled, so
anybody can check that what is shipped comes from the source beside it.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from scrubber.cuda.images import FOLDER, OLDEST, PORTABLE, binary

ARCHITECTURES = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0))
SOURCE, HEADER = "scrub.cu", "machine.cuh"
OPTIONS = ("--std=c++17",)
MANIFEST = "manifest.json"
LIBRARY = Path("nvidia", "cuda_nvrtc", "lib", "libnvrtc.so.12")
_RELEASE = re.compile(r"^// (Cuda compilation tools, .*)$", re.MULTILINE)


class CompilingError(Exception):
    """The compiler is missing, or refused: the message says why."""


@dataclass(frozen=True, slots=True)
class CompileTarget:
    """One file to be made, and how the compiler names its architecture."""

    name: str
    architecture: str
    form: str  # what is asked of the compiler: machine code, or the portable form


TARGETS = (
    *(CompileTarget(binary(*version), f"sm_{version[0]}{version[1]}", "CUBIN") for version in ARCHITECTURES),
    CompileTarget(PORTABLE, f"compute_{OLDEST[0]}{OLDEST[1]}", "PTX"),
)


def library(folders: Iterable[Path]) -> Path:
    """Where the compiler is, among folders that packages are installed in."""
    for folder in folders:
        if (path := folder / LIBRARY).is_file():
            return path
    raise CompilingError("cannot compile the kernels: NVRTC is not installed; run make kernels")


def compiled(compiler: Path, sources: Mapping[str, str]) -> dict[str, bytes]:
    """Everything that is shipped beside the sources, the manifest included, by file name."""
    nvrtc = ctypes.CDLL(str(compiler))
    images = {target.name: _image(nvrtc, target, sources) for target in TARGETS}
    release = _RELEASE.search(images[PORTABLE].decode())
    if release is None:
        raise CompilingError("cannot compile the kernels: the compiler does not say which release it is")
    manifest = {
        "compiler": release[1],
        "options": list(OPTIONS),
        "sources": {name: _digest(text.encode()) for name, text in sorted(sources.items())},
        "images": {
            target.name: {
                "architecture": target.architecture,
                "sha256": _digest(images[target.name]),
                "size": len(images[target.name]),
            }
            for target in TARGETS
        },
    }
    return images | {MANIFEST: json.dumps(manifest, indent=2).encode() + b"\n"}


def read_sources(folder: Path = FOLDER) -> dict[str, str]:
    """What the kernels are made from."""
    return {name: (folder / name).read_text() for name in (SOURCE, HEADER)}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _image(nvrtc: ctypes.CDLL, target: CompileTarget, sources: Mapping[str, str]) -> bytes:
    program = ctypes.c_void_p()
    texts, names = (ctypes.c_char_p * 1)(sources[HEADER].encode()), (ctypes.c_char_p * 1)(HEADER.encode())
    source = sources[SOURCE].encode()
    _checked(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, SOURCE.encode(), 1, texts, names), "")
    try:
        options = [f"--gpu-architecture={target.architecture}", *OPTIONS]
        words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        status = nvrtc.nvrtcCompileProgram(program, len(options), words)
        log = _output(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
        _checked(status or bool(log), f" for {target.architecture}: {log}")  # a warning is an error
        image = _output(nvrtc, program, target.form)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return image.rstrip(b"\0") if target.form == "PTX" else image


def _output(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _checked(getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), f": no {what}")
    data = ctypes.create_string_buffer(size.value)
    _checked(getattr(nvrtc, f"nvrtcGet{what}")(program, data), f": no {what}")
    return data.raw


def _checked(status: int, why: str) -> None:
    if status:
        raise CompilingError(f"cannot compile the kernels{why or f': NVRTC says {status}'}")


def main(folder: Path = FOLDER) -> None:
    """Compile everything, then write it beside the sources."""
    try:
        made = compiled(library(map(Path, sys.path)), read_sources(folder))
    except CompilingError as error:
        raise SystemExit(str(error)) from error
    for name, data in made.items():
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
