"""The releases of nvidia-ml-py that are allowed: the product works with the oldest and with the newest.

``pynvml_names.txt`` lists the names of ``pynvml`` that the product uses. The night installs the oldest release, and
checks that it has them all.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

ROOT = Path(__file__).parents[3]
LISTED = set((Path(__file__).parent / "pynvml_names.txt").read_text().split())
ROOMS = ("scrubber", "plugin", "scrub_api", "policies", "ground", "dashboards", "benchmarks")
OLDEST = "13.580.65"  # the first release of the line that pyproject.toml allows
SUITE = ("tests/devices/nvidia", "tests/fakes")
NAMES = "import json, pynvml; print(json.dumps([pynvml.__file__, *dir(pynvml)]))"


def used() -> set[str]:
    """The names of ``pynvml`` that the product uses; ``getattr`` with another expression would hide one."""
    trees = [ast.parse(file.read_text()) for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    return {
        node.attr
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pynvml"
    }


def test_the_product_uses_no_unlisted_name_of_pynvml() -> None:
    """Before you list a name, check that the oldest release has it: `make night` installs that release and looks."""
    assert used() == LISTED


def test_the_installed_release_has_every_listed_name() -> None:
    assert not [name for name in LISTED if not hasattr(pynvml, name)]


def test_the_oldest_release_is_the_floor_of_the_project() -> None:
    assert f'"nvidia-ml-py>={".".join(OLDEST.split(".")[:2])},<14"' in (ROOT / "pyproject.toml").read_text()


@pytest.fixture(scope="module", params=[f"=={OLDEST}", ">=13,<14"], ids=["oldest", "newest"])
def release(request, tmp_path_factory) -> dict[str, str]:
    """An environment in which ``pynvml`` is of this release."""
    folder = tmp_path_factory.mktemp("release")
    install = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "--quiet",
        "--no-cache",
        "--no-deps",
        "--upgrade",
        "--target",
    ]
    # The guards around a test take its home directory away, where uv has its cache.
    done = subprocess.run(
        [*install, folder, f"nvidia-ml-py{request.param}"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1:]}")
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}


@pytest.mark.night
def test_the_oldest_and_the_newest_release_have_every_listed_name(release) -> None:
    run = subprocess.run([sys.executable, "-c", NAMES], env=release, capture_output=True, text=True, check=True)
    place, *names = re.findall(r'"([^"]+)"', run.stdout)
    assert place.startswith(release["PYTHONPATH"].split(os.pathsep)[0])
    assert not LISTED - set(names)


@pytest.mark.night
def test_the_nvml_tests_pass_with_the_oldest_and_newest_release(release) -> None:
    options = [
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--basetemp",
        release["PYTHONPATH"].split(":")[0] + "/tmp",
    ]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *SUITE],
        cwd=ROOT,
        env=release,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:]
