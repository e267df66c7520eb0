"""Compile the kernels for each architecture; ``make kernels`` and the build of a wheel call this module.

It needs the compiler library (NVRTC), but no toolkit and no GPU. Use a 12.x compiler: drivers of 12.x and 13.x load its
output. The same source always gives the same bytes. The committed manifest has their hashes, and other bytes are
refused: only ``--accept`` writes the manifest.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def build(folder: Path = FOLDER, *, accept: bool = False) -> None:
    """Compile the images into the folder of the sources, unless they are there.

    CompilingError if they are not what the manifest says. ``accept`` writes the manifest instead.
    """
    for image in (*folder.glob("*.cubin"), *folder.glob("*.ptx")):
        if image.name not in {target.name for target in TARGETS}:
            image.unlink()  # of another release: git ignores it, a wheel would carry it
    manifest = folder / MANIFEST
    if not accept and _complete(folder, json.loads(manifest.read_bytes())):
        return
    made = compiled(library(map(Path, sys.path)), read_sources(folder))
    if not accept and made[MANIFEST] != manifest.read_bytes():
        why = "source, compiler or images are not those of their manifest"
        remedy = "after a change of the source, run make kernels ARGS=--accept"
        raise CompilingError(f"cannot ship the kernels: {why}; {remedy}")
    for name in (MANIFEST, *(target.name for target in TARGETS)):
        (folder / name).write_bytes(made[name])


def _complete(folder: Path, manifest: Mapping[str, Any]) -> bool:
    digests = manifest["sources"] | {name: image["sha256"] for name, image in manifest["images"].items()}
    return all((file := folder / name).is_file() and _digest(file.read_bytes()) == digests[name] for name in digests)


def main() -> None:
    """Build the images."""
    parser = argparse.ArgumentParser(prog="make kernels", description="Compile the GPU kernels.")
    parser.add_argument("--accept", action="store_true", help="write the manifest anew, after a change of the source")
    try:
        build(accept=parser.parse_args().accept)
    except CompilingError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
