"""What is shipped is what stands here, and what is generated is up to date."""

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from importlib import metadata, util
from pathlib import Path

import pytest

from scrubber import __version__

ROOT = Path(__file__).parents[2]
HOUSES = ("autoclave", "access", "remnant", "containers", "scrubber", "plugin", "scrub_api", "policies", "ground")


@pytest.mark.parametrize("house", HOUSES)
def test_our_import_names_are_ours_alone(house):
    owners = metadata.packages_distributions().get(house, [])
    assert set(owners) <= {"autoclave"}
    spec = util.find_spec(house)
    assert spec
    assert spec.origin == str(ROOT / house / "__init__.py")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_only_the_product(wheel):
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    written = {path.relative_to(ROOT).as_posix() for house in HOUSES for path in (ROOT / house).rglob("*.*")}
    made = ("__pycache__", ".pyi")  # by the interpreter, and by `make` for mypy
    page = f"autoclave-{__version__}.data/data/share/man/man1/autoclave.1"
    assert packed == {page, *(name for name in written if not any(mark in name for mark in made))}


def test_the_wheel_holds_the_kernels_compiled_and_as_source(wheel):
    folder = "scrubber/cuda/kernels"
    manifest = json.loads(wheel.read(f"{folder}/manifest.json"))
    hashes = manifest["sources"] | {name: image["sha256"] for name, image in manifest["images"].items()}
    assert {"scrub.cu", "scrub.ptx", "scrub.sm_90.cubin"} <= hashes.keys()
    assert {name: hashlib.sha256(wheel.read(f"{folder}/{name}")).hexdigest() for name in hashes} == hashes


def test_the_lock_pins_every_package_and_names_no_place():
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert [line for line in lines if "==" not in line or "://" in line or line.startswith("-")] == []


def test_the_demo_needs_only_what_the_image_has():
    """``make demo`` installs that alone."""
    locked = {
        name.lower() for name in re.findall(r"(?m)^([\w.-]+)==", (ROOT / "deploy/requirements/none.lock").read_text())
    }
    imported = set[str]()
    for path in (ROOT / "demo").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            imported |= {it.name for it in node.names} if isinstance(node, ast.Import) else set()
            imported |= {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
    owners = metadata.packages_distributions()
    needed = {owner for name in imported for owner in owners.get(name.partition(".")[0], [])} - {"autoclave"}
    assert {name.lower() for name in needed} <= locked
    assert "grpcio" in needed


def test_the_stubs_are_what_the_generator_makes(tmp_path):
    # The recipe stands in the Makefile only; -o: the environment is taken as it is.
    make = [
        "make",
        "-s",
        "-o",
        ".venv/.demo",
        "-o",
        ".venv/.ready",
        "proto",
        f"OUT={tmp_path}",
        f"BIN={Path(sys.executable).parent}",
    ]
    env = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MFLAGS", "MAKELEVEL"}}
    subprocess.run(make, cwd=ROOT, env=env, capture_output=True, check=True)
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*_pb2*")}
    assert made == {name: (ROOT / name).read_text() for name in made}
    rooms = (ROOT / "scrub_api", ROOT / "plugin" / "kubelet_api", ROOT / "plugin" / "cluster")
    kept = {path.relative_to(ROOT) for room in rooms for path in room.glob("*_pb2*") if path.suffix in {".py", ".pyi"}}
    assert set(made) == kept
