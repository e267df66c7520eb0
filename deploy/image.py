"""Build the image with docker, podman or buildah: ``python -m deploy.image`` (``make image``).

The base is pulled by the digest in the Dockerfile. Where no registry gives it, a base for trials is made of Debian's
packages, which needs root and debootstrap.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from scrubber import __version__

ROOT = Path(__file__).parents[1]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
REPOSITORY = "localhost/autoclave"  # a name that no registry has: the image is only on this machine
CUDA = "cuda12"  # the default of the Dockerfile and of the chart: its CuPy works with the most drivers
BUILDERS = ("docker", "podman", "buildah")
# The oldest release of Debian whose Python has the minor version of the Dockerfile's base.
SUITE = "trixie"
PACKAGES = ("ca-certificates", "netbase", "python3", "python3-venv", "tzdata")
LOCAL_BASE = f"localhost/autoclave-base:{SUITE}"
LOCAL_DOCKERFILE = """\
FROM scratch
ADD base.tar /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
CMD ["python3"]
"""
# Debootstrap mounts /proc and /sys. In a mount namespace of its own, no mount outlives it.
OWN_MOUNTS = ("unshare", "--mount")
NO_MOUNTS: Mapping[Path, str] = MappingProxyType({})
OPEN_FILES = 8192  # buildah allows 1024; the compiler of the create gate opens all of its C library
LEFT_OUT = (
    *("dev/*", "proc/*", "sys/*", "var/cache/*", "var/lib/apt/lists/*", "var/log/*", "__pycache__"),
    *("usr/share/doc/*", "usr/share/info/*", "usr/share/locale/*", "usr/share/man/*"),  # as the slim images of Debian
    *("etc/resolv.conf", "etc/hostname"),  # of this machine
)


class CannotBuildError(Exception):
    """What is missing, and what to do."""


@dataclass(frozen=True)
class Builder:
    """A program that builds images and runs commands in them."""

    name: str

    def has(self, image: str) -> bool:
        """Whether the image is on this machine."""
        return self._succeeds("inspect", "--type=image", image)

    def pull(self, image: str) -> bool:
        """Whether a registry gave the image. The program prints why not."""
        return subprocess.run([self.name, "pull", "--quiet", image], stdout=sys.stderr, check=False).returncode == 0

    def build(self, dockerfile: Path, context: Path, tag: str, options: Sequence[str] = ()) -> None:
        """Build an image under this name."""
        fixed: list[str | Path] = ["--pull=false", f"--ulimit=nofile={OPEN_FILES}:{OPEN_FILES}", "-f", dockerfile]
        command = [self.name, "build", *fixed, "-t", tag, *options, context]
        _run(command, "cannot build the image", env=os.environ | self._isolation())

    def save(self, image: str, archive: Path) -> None:
        """Write the image into a file as ``docker save`` does, for a node without a registry."""
        archive.parent.mkdir(parents=True, exist_ok=True)
        archive.unlink(missing_ok=True)
        target = [image, f"docker-archive:{archive}:{image}"]
        command = ["push", *target] if self.name == "buildah" else ["save", "-o", str(archive), image]
        _run([self.name, *command], f"cannot write the image to {archive}")

    def run(
        self, image: str, command: Sequence[str], *, user: str = "", mounts: Mapping[Path, str] = NO_MOUNTS
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a new container, by default as the image's user. The entry point is not used.

        Mounts are directories of this machine, with their places in the container, to be read there.
        """
        options = [f"--user={user}"] if user else []
        options += [f"--volume={path}:{place}:ro" for path, place in mounts.items()]
        if self.name != "buildah":
            entry = [f"--entrypoint={command[0]}", image, *command[1:]]
            return self._output("run", "--rm", *options, *entry)
        container = self._output("from", "--pull=false", image)
        if container.returncode != 0:
            return container
        try:
            return self._output("run", *options, container.stdout.strip(), "--", *command)
        finally:
            self._output("rm", container.stdout.strip())

    def works(self) -> bool:
        """Whether the program is installed and, for docker, its daemon answers."""
        return shutil.which(self.name) is not None and self._succeeds("info")

    def _succeeds(self, *arguments: str) -> bool:
        return self._output(*arguments).returncode == 0

    def _output(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [self.name, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | self._isolation())

    def _isolation(self) -> Mapping[str, str]:
        """Buildah's default needs an OCI runtime and control groups; its isolation ``chroot`` needs neither."""
        return {"BUILDAH_ISOLATION": os.environ.get("BUILDAH_ISOLATION", "chroot")} if self.name == "buildah" else {}


def find_builder(wanted: Sequence[str] = BUILDERS) -> Builder:
    """The first of these programs that works."""
    for builder in map(Builder, wanted):
        if builder.works():
            return builder
    names = ", ".join(wanted)
    raise CannotBuildError(
        f"cannot build the image: none of these works here: {names}; start docker, or install one (Debian: buildah)"
    )


def find_base(builder: Builder, mirror: str = "") -> str:
    """The Dockerfile's own base if a registry gives it, else one that is made here, once."""
    pinned = default_base()
    if builder.has(pinned) or builder.pull(pinned):
        return pinned
    print(f"no registry gives {pinned}", file=sys.stderr)
    if not builder.has(LOCAL_BASE):
        _make_base(builder, mirror)
    print(f"building for a trial on {LOCAL_BASE}, made of Debian's packages", file=sys.stderr)
    return LOCAL_BASE


def default_base() -> str:
    """What the Dockerfile builds on if nobody names a base."""
    (found,) = re.findall(r"^ARG BASE=(\S+)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    return str(found)


def _make_base(builder: Builder, mirror: str) -> None:
    """Debian without anything that is not needed, and its Python where the Dockerfile looks for one, with a pip."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise CannotBuildError(
            "cannot make a base: this needs root and debootstrap (Debian: debootstrap); "
            "or name a base that is on this machine, with --base"
        )
    print(f"making {LOCAL_BASE} with debootstrap; this takes some minutes, once", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="autoclave-base-") as directory:
        place = Path(directory)
        root = place / "root"
        include = f"--include={','.join(PACKAGES)}"
        _run(
            [*OWN_MOUNTS, "debootstrap", "--variant=minbase", include, SUITE, root, *([mirror] if mirror else [])],
            "cannot install a Debian",
        )
        _run(["chroot", root, "python3", "-m", "venv", "/usr/local"], "cannot make an environment of Debian's Python")
        without = [f"--exclude=./{path}" if "/" in path else f"--exclude={path}" for path in LEFT_OUT]
        _run(["tar", "--create", "--file", place / "base.tar", *without, "--directory", root, "."], "cannot pack it")
        context = place / "context"
        context.mkdir()
        (place / "base.tar").rename(context / "base.tar")
        (context / "Dockerfile").write_text(LOCAL_DOCKERFILE, encoding="utf-8")
        builder.build(context / "Dockerfile", context, LOCAL_BASE)


def secrets(environment: Mapping[str, str], home: Path) -> list[str]:
    """Where pip and uv of this machine find packages, for the steps of the build alone: no layer keeps these files."""
    sought: dict[str, list[str | Path | None]] = {
        "pip": [environment.get("PIP_CONFIG_FILE"), home / ".config/pip/pip.conf", "/etc/pip.conf"],
        "uv": [environment.get("UV_CONFIG_FILE"), home / ".config/uv/uv.toml", "/etc/uv/uv.toml"],
        "certificates": [environment.get("SSL_CERT_FILE")],
    }
    found = {name: [path for path in paths if path and Path(path).is_file()] for name, paths in sought.items()}
    return [f"--secret=id={name},src={paths[0]}" for name, paths in found.items() if paths]


def name_of(cuda: str) -> str:
    """The name of this build on this machine, with the tag by which the manifests ask for it."""
    return f"{REPOSITORY}:{__version__}" + (f"-{cuda}" if cuda != "none" else "")


def build(builder: Builder, base: str, cuda: str, tag: str, home: str = "") -> None:
    """Build the image of this tree. ``home``: the page of the project that publishes it."""
    revision, created = _git("rev-parse", "HEAD"), _git("log", "-1", "--format=%cI")
    arguments = {"BASE": base, "CUDA": cuda, "VERSION": __version__, "REVISION": revision, "CREATED": created}
    options = [f"--build-arg={name}={value}" for name, value in arguments.items() if value]
    if home:  # a registry shows the image there, with the rights of that repository
        options += [f"--label=org.opencontainers.image.{name}={home}" for name in ("source", "url")]
    builder.build(DOCKERFILE, ROOT, tag, [*options, *secrets(os.environ, Path.home())])


def _git(*arguments: str) -> str:
    """Nothing, where this is not a checkout: the Dockerfile has defaults."""
    run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return run.stdout.strip()


def _run(command: Sequence[str | Path], fault: str, env: Mapping[str, str] | None = None) -> None:
    run = subprocess.run(command, stdout=sys.stderr, check=False, env=env)
    if run.returncode != 0:
        raise CannotBuildError(f"{fault}: {command[0]} ended with {run.returncode}")


def main() -> None:
    """Build, and print the image's name."""
    parser = argparse.ArgumentParser(prog="python -m deploy.image", description=__doc__)
    parser.add_argument(
        "--cuda",
        choices=("none", "cuda12", "cuda13"),
        default=CUDA,
        help="the CuPy inside: cuda12 [default] for drivers from 525 on, cuda13 from 580 on; none: simulated GPUs only",
    )
    parser.add_argument("--tag", help=f"the image's name; default: {name_of(CUDA)}")
    parser.add_argument("--base", help="build on this image; default: that of the Dockerfile, or one made here")
    parser.add_argument("--builder", choices=BUILDERS, help="use this program; default: the first that works")
    parser.add_argument(
        "--mirror", default="", help="Debian's packages for a base made here [default: debootstrap's own choice]"
    )
    parser.add_argument("--home", default="", help="the page of the project that publishes the image, for its labels")
    parser.add_argument("--archive", type=Path, help="also write the image to this file, as `docker save` does")
    options = parser.parse_args()
    try:
        builder = find_builder([options.builder] if options.builder else BUILDERS)
        base = options.base or find_base(builder, options.mirror)
        tag = options.tag or name_of(options.cuda)
        build(builder, base, options.cuda, tag, options.home)
        if options.archive:
            builder.save(tag, options.archive)
    except CannotBuildError as error:
        sys.exit(str(error))
    print(tag)


if __name__ == "__main__":
    main()
