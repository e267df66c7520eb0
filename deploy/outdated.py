"""List what has a newer release, and no bot tells of: ``python -m deploy.outdated`` (``make outdated``).

Packages of the locks, Debian's of the image's base among them, the tools that the recipe of the image names, and the
programs in Go that the tests build. It changes nothing: `make lock ARGS=--upgrade` renews the locks, `python -m
deploy.base` that of the base, and a person the other pins.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from deploy import base

ROOT = Path(__file__).parents[1]
BUILDS = ("none", "cuda12", "cuda13")
LOCKS = ("requirements.lock", "deploy/tools.lock", *(f"deploy/requirements/{build}.lock" for build in BUILDS))
_PIN = re.compile(r"^([A-Za-z0-9_.-]+)==([^\s;]+)", re.MULTILINE)
_ARGUMENT = re.compile(r"^ARG CYCLONEDX=(\S+)$", re.MULTILINE)
_PROGRAM = re.compile(r"^ACTIONLINT := (\S+?)/cmd/\S+@(v\S+)$", re.MULTILINE)


def pins(lock: str) -> dict[str, set[str]]:
    """The releases that a lock names, by package: one for each version of Python that needs its own."""
    named: dict[str, set[str]] = {}
    for name, version in _PIN.findall(lock):
        named.setdefault(name, set()).add(version)
    return named


def debian(lock: str) -> dict[str, set[str]]:
    """The same of the base's lock: a version for each architecture that needs its own."""
    named: dict[str, set[str]] = {}
    for name, version, *_ in base.entries(lock):
        named.setdefault(name, set()).add(version)
    return named


def newer(old: Mapping[str, set[str]], new: Mapping[str, set[str]]) -> Iterator[str]:
    """What differs in a lock that was renewed, one line a package."""
    for name in sorted(old.keys() | new.keys()):
        if (was := old.get(name, set())) != (will := new.get(name, set())):
            yield f"{name}: {', '.join(sorted(was)) or 'not there'} -> {', '.join(sorted(will)) or 'not needed'}"


def _renewed() -> dict[str, str]:
    """The locks as `make lock ARGS=--upgrade` would write them."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("Makefile", "pyproject.toml", "README.md", "benchmarks/trial/packages.txt", *LOCKS):
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, Path(folder) / name)
        _said("make", "-s", "-C", folder, "lock", f"BIN={Path(sys.executable).parent}", "READY=", "ARGS=--upgrade")
        return {name: (Path(folder) / name).read_text() for name in LOCKS}


def _said(*command: str | Path, given: str = "") -> str:
    return subprocess.run(command, cwd=ROOT, input=given, capture_output=True, text=True, check=True).stdout


def lines() -> Iterator[str]:
    """A line for each, with the file that names it."""
    for name, text in _renewed().items():
        yield from (f"{name}: {line}" for line in newer(pins((ROOT / name).read_text()), pins(text)))
    recipe, makefile = (ROOT / "deploy/Dockerfile").read_text(), (ROOT / "Makefile").read_text()
    uv = Path(sys.executable).parent / "uv"
    pinned = "".join(f"cyclonedx-bom=={version}\n" for version in _ARGUMENT.findall(recipe))
    newest = _said(uv, "pip", "compile", "-q", "--no-deps", "--no-header", "--no-annotate", "-", given="cyclonedx-bom")
    yield from (f"deploy/Dockerfile: {line}" for line in newer(pins(pinned), pins(newest)))
    for module, version in _PROGRAM.findall(makefile):
        if shutil.which("go") is None:
            yield f"Makefile: {module} {version}: Go is not installed, so nobody asked"
        elif (latest := _said("go", "list", "-m", "-f", "{{.Version}}", f"{module}@latest").strip()) != version:
            yield f"Makefile: {module}: {version} -> {latest}"
    if shutil.which("apt-get") is None:
        yield "deploy/debian.lock: apt is not installed, so nobody asked"
    else:
        packages = newer(debian(base.LOCK.read_text()), debian(base.write_lock()))
        yield from (f"deploy/debian.lock: {line}" for line in packages)


def main() -> None:
    """Print them."""
    try:
        for line in lines():
            print(line)
    except subprocess.CalledProcessError as error:
        sys.exit(f"cannot ask for newer releases: {error.cmd[0]} ended with {error.returncode}\n{error.stderr}")


if __name__ == "__main__":
    main()
