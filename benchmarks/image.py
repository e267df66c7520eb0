"""How large the image is, part by part, and how long starts take in it. Needs uv and a package index.

python -m benchmarks.image [--output DIR]

For each CUDA, the steps of deploy/Dockerfile in an empty environment: every locked package by its hash, compiled, then
the wheel of this tree, without what the image leaves out. Where buildah, podman or docker is, also the image itself:
its parts, for simulated and for NVIDIA GPUs, and starts in the first one beside those of the same packages outside.
Writes ``image.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.figures import quantile
from benchmarks.nvml_questions import wrapped
from deploy import image as recipe
from deploy import leave_out

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "deploy" / "requirements"
VARIANTS = ("none", "cuda12", "cuda13")
UV: list[str | Path] = [sys.executable, "-m", "uv", "--quiet"]
STARTS = (["--version"], ["scrubber", "--help"], ["plugin", "--help"])
SIZE_PROBE, START_PROBE = (
    Path(__file__).with_name(f"image_{name}.py").read_text("utf-8") for name in ("sizes", "starts")
)
TAG = "localhost/autoclave:measured"
BASE = "localhost/autoclave-base:benchmark"
BESIDE = "/beside"
COMMAND = "python -m benchmarks.image --output docs/measurements"
MIB = 2**20
UNBUILT = "\nThe image itself was not built here: there was no buildah, podman or docker.\n"
BIGGEST = 6
ROUNDS = 3


@dataclass(frozen=True)
class Variant:
    """What is in an environment that holds nothing else."""

    name: str
    packages: int
    bytes: int
    largest: dict[str, int]


@dataclass(frozen=True)
class Built:
    """What was found in an image that was built, and of starts outside of it."""

    builder: str
    sizes: dict[str, dict[str, Any]]
    inside: dict[str, Any]
    outside: dict[str, Any]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.image", description=__doc__)
    parser.add_argument("--output", type=Path, help="where to write image.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        build = [*UV, "build", "--wheel", "--build-constraints", "requirements.lock", "--out-dir", place / "wheel"]
        subprocess.run(build, cwd=ROOT, check=True)
        (wheel,) = (place / "wheel").glob("*.whl")
        found = [_measure(place / variant, variant, wheel) for variant in VARIANTS]
        built = _image(place / "none")
    taken = time.strftime("%Y-%m-%d", time.gmtime())
    machine = {"processor": platform.machine(), "python": platform.python_version()}
    text = _text(taken, machine, found) + (_built(built) if built else UNBUILT)
    print(text)
    if options.output is not None:
        (options.output / "image.md").write_text(wrapped(text))


def _measure(prefix: Path, variant: str, wheel: Path) -> Variant:
    install: list[str | Path] = [*UV, "pip", "install", "--python", prefix, "--link-mode", "copy", "--compile-bytecode"]
    subprocess.run([*UV, "venv", "--python", sys.executable, prefix], check=True)
    lock = LOCKS / f"{variant}.lock"
    subprocess.run([*install, "--require-hashes", "--only-binary", ":all:", "-r", lock], check=True)
    subprocess.run([*install, "--no-deps", wheel], check=True)
    subprocess.run([*UV, "pip", "check", "--python", prefix], check=True)
    leave_out.main(prefix)
    for command in STARTS:
        run: list[str | Path] = [prefix / "bin" / "autoclave", *command]
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL, env={"PATH": os.defpath}, cwd="/")
    (packages,) = (prefix / "lib").glob("python*/site-packages")
    sizes = {it.name: _size(it) for it in metadata.distributions(path=[str(packages)])}
    largest = sorted(sizes, key=lambda name: sizes[name], reverse=True)[:BIGGEST]
    total = sum(it.lstat().st_size for it in prefix.rglob("*") if it.is_file() and not it.is_symlink())
    return Variant(variant, len(sizes), total, {name: sizes[name] for name in largest})


def _image(prefix: Path) -> Built | None:
    """Build, and measure inside and outside; or print why there is no image."""
    python = "/opt/autoclave/bin/python"
    sizes = {}
    try:
        builder = recipe.find_builder()
        recipe.build(builder, "none", BASE, more=["--target=base"])
        sizes["base"] = _inside(builder, BASE, ["python3", "-c", SIZE_PROBE], user="0")
        for variant in (recipe.CUDA, "none"):  # the last one stays, for the starts
            recipe.build(builder, variant, TAG)
            sizes[f"`{variant}`"] = _inside(builder, TAG, [python, "-c", SIZE_PROBE], user="0")
    except recipe.CannotBuildError as error:
        print(error, file=sys.stderr)
        return None
    beside = prefix.with_name("beside")  # the demo, which starts the programs, without the rest of the checkout
    shutil.copytree(ROOT / "demo", beside / "demo")
    inside, outside = [], []
    for _ in range(ROUNDS):  # in turns: the load of the machine changes
        start = ["env", f"PYTHONPATH={BESIDE}", python, "-c", START_PROBE]
        inside.append(_inside(builder, TAG, start, mounts={beside: BESIDE}))
        outside.append(_outside([prefix / "bin" / "python", "-c", START_PROBE], beside))
    return Built(
        builder.name,
        sizes,
        inside=_together(inside),
        outside=_together(outside),
    )


def _together(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    starts = {name: [sample for it in rounds for sample in it["starts"][name]] for name in rounds[0]["starts"]}
    return {"python": rounds[0]["python"], "starts": starts}


def _outside(command: list[str | Path], beside: Path) -> dict[str, Any]:
    empty = {"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(beside)}
    run = subprocess.run(command, check=True, capture_output=True, text=True, env=empty, cwd="/")
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def _inside(
    builder: recipe.Builder,
    image: str,
    command: list[str],
    *,
    user: str = "",
    mounts: Mapping[Path, str] = recipe.NO_MOUNTS,
) -> dict[str, Any]:
    run = builder.run(image, command, user=user, mounts=mounts)
    if run.returncode != 0:
        raise RuntimeError(f"{command[0]} failed in {image}: {run.stderr}")
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def _size(distribution: metadata.Distribution) -> int:
    """Its files as they were unpacked, without those left out; what was compiled of them counts for the total alone."""
    return sum(file.size or 0 for file in distribution.files or () if Path(str(file.locate())).exists())


def _text(taken: str, machine: dict[str, str], found: list[Variant]) -> str:
    rows = [f"| `{it.name}` | {it.packages} | {it.bytes / MIB:.0f} MiB |" for it in found]
    return f"""# What the image holds

Taken {taken} with `{COMMAND}`, on {machine["processor"]} with Python {machine["python"]}:
the steps of `deploy/Dockerfile` in an empty environment.

| `CUDA` | packages | on disk |
|---|---|---|
{chr(10).join(rows)}

"On disk" is `/opt/autoclave` whole, compiled Python files included. What the base image takes comes on top.
"""


def _built(it: Built) -> str:
    parts = {name: {**sizes["parts"], "whole": sum(sizes["parts"].values())} for name, sizes in it.sizes.items()}
    rows = [
        f"| {part} | {' | '.join(f'{sizes[part] / MIB:.1f}' for sizes in parts.values())} |" for part in parts["base"]
    ]
    starts = [
        f"| {name} | {' | '.join(f'{quantile(samples, 0.5) * 1000:.0f} ms' for samples in _columns(it, name))} |"
        for name in it.inside["starts"]
    ]
    samples = len(next(iter(it.inside["starts"].values())))
    return f"""
## The images

Built with {it.builder}. All files of each, in MiB:

| part | {" | ".join(parts)} |
|---|{"---|" * len(parts)}
{chr(10).join(rows)}

Starts in `none`, median of {samples}, inside and outside in turns. "Outside" has the same packages on the machine's own
Python: {it.outside["python"]}, and inside {it.inside["python"]}. The service has 8 simulated GPUs. Other programs kept
the machine busy: compare processor times.

| start | inside | outside | inside, processor time | outside, processor time |
|---|---|---|---|---|
{chr(10).join(starts)}
"""


def _columns(it: Built, name: str) -> Iterator[list[float]]:
    for which in (0, 1):
        for place in (it.inside, it.outside):
            yield [sample[which] for sample in place["starts"][name]]


if __name__ == "__main__":
    main()
