"""Compile the kernels for each architecture; run ``make kernels``, which calls this module.

It needs the compiler library (NVRTC), but no toolkit and no GPU. Use a 12.x compiler: drivers of 12.x and 13.x load its
output. The same source always gives the same bytes, so it can be checked that the shipped files come from the source.
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
    """The compiler is missing or failed. The message says why."""


@dataclass(frozen=True, slots=True)
class CompileTarget:
    """One file to compile, and the compiler's name of its architecture."""

    name: str
    architecture: str
    form: str  # machine code or the portable form


TARGETS = (
    *(CompileTarget(binary(*version), f"sm_{version[0]}{version[1]}", "CUBIN") for version in ARCHITECTURES),
    CompileTarget(PORTABLE, f"compute_{OLDEST[0]}{OLDEST[1]}", "PTX"),
)


def library(folders: Iterable[Path]) -> Path:
    """Find the compiler in the folders of installed packages."""
    for folder in folders:
        if (path := folder / LIBRARY).is_file():
            return path
    raise CompilingError("cannot compile the kernels: NVRTC is not installed; run make kernels")


def compiled(compiler: Path, sources: Mapping[str, str]) -> dict[str, bytes]:
    """All compiled files and the manifest, by file name."""
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
    """The sources of the kernels, by file name."""
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
    """Compile all kernels and write them next to the sources."""
    try:
        made = compiled(library(map(Path, sys.path)), read_sources(folder))
    except CompilingError as error:
        raise SystemExit(str(error)) from error
    for name, data in made.items():
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
