"""How much the image's own packages take on disk, and that both commands run from them. Needs uv and a package index.

python -m benchmarks.image [--output DIR]

The steps are those of deploy/Dockerfile, in an empty environment: every locked package by its hash, compiled, then the
wheel of this tree. Writes ``image.md`` and ``.json``. What the base image takes is not measured: it takes an engine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "deploy" / "requirements"
VARIANTS = ("none", "cuda12", "cuda13")
UV: list[str | Path] = [sys.executable, "-m", "uv", "--quiet"]
STARTS = (["--version"], ["scrubber", "--help"], ["plugin", "--help"])
COMMAND = "python -m benchmarks.image --output docs/measurements"
MIB = 2**20
BIGGEST = 6


@dataclass(frozen=True)
class Variant:
    """What is in an environment that holds nothing else."""

    name: str
    packages: int
    bytes: int
    largest: dict[str, int]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.image", description=__doc__)
    parser.add_argument("--output", type=Path, help="where to write image.md and image.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        build = [*UV, "build", "--wheel", "--build-constraints", "requirements.lock", "--out-dir", place / "wheel"]
        subprocess.run(build, cwd=ROOT, check=True)
        (wheel,) = (place / "wheel").glob("*.whl")
        found = [_measure(place / variant, variant, wheel) for variant in VARIANTS]
    taken = time.strftime("%Y-%m-%d", time.gmtime())
    machine = {"processor": platform.machine(), "python": platform.python_version()}
    document = {"taken": taken, "command": COMMAND, "machine": machine, "variants": [asdict(it) for it in found]}
    text = _text(taken, machine, found)
    print(text)
    if options.output is not None:
        (options.output / "image.json").write_text(json.dumps(document, indent=2) + "\n")
        (options.output / "image.md").write_text(text)


def _measure(prefix: Path, variant: str, wheel: Path) -> Variant:
    install: list[str | Path] = [*UV, "pip", "install", "--python", prefix, "--link-mode", "copy", "--compile-bytecode"]
    subprocess.run([*UV, "venv", "--python", sys.executable, prefix], check=True)
    lock = LOCKS / f"{variant}.lock"
    subprocess.run([*install, "--require-hashes", "--only-binary", ":all:", "-r", lock], check=True)
    subprocess.run([*install, "--no-deps", wheel], check=True)
    subprocess.run([*UV, "pip", "check", "--python", prefix], check=True)
    for command in STARTS:
        run: list[str | Path] = [prefix / "bin" / "autoclave", *command]
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL, env={"PATH": os.defpath}, cwd="/")
    (packages,) = (prefix / "lib").glob("python*/site-packages")
    sizes = {it.name: _size(it) for it in metadata.distributions(path=[str(packages)])}
    largest = sorted(sizes, key=lambda name: sizes[name], reverse=True)[:BIGGEST]
    total = sum(it.lstat().st_size for it in prefix.rglob("*") if it.is_file() and not it.is_symlink())
    return Variant(variant, len(sizes), total, {name: sizes[name] for name in largest})


def _size(distribution: metadata.Distribution) -> int:
    """Its files as they were unpacked; what was compiled of them counts for the total alone."""
    return sum(file.size or 0 for file in distribution.files or ())


def _text(taken: str, machine: dict[str, str], found: list[Variant]) -> str:
    rows = []
    for it in found:
        named = ", ".join(f"{name} {size / MIB:.1f}" for name, size in it.largest.items())
        rows.append(f"| `{it.name}` | {it.packages} | {it.bytes / MIB:.0f} MiB | {named} |")
    return f"""# What the image holds

Taken {taken} with `{COMMAND}`, on {machine["processor"]} with Python {machine["python"]}: the
steps of `deploy/Dockerfile` in an empty environment. Both commands were started from each of them.

| `CUDA` | packages | on disk | the largest, in MiB, before they are compiled |
|---|---|---|---|
{chr(10).join(rows)}

"On disk" is `/opt/autoclave` whole, compiled Python files included. What the base image takes comes on top and was not
measured. The image has another minor version of Python than this machine may have: sizes differ a little.
"""


if __name__ == "__main__":
    main()
