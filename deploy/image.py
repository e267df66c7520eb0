"""Build the image with buildah, podman or docker: ``python -m deploy.image`` (``make image``).

This calls deploy/Dockerfile with the labels and the times of the commit. Podman and buildah give the same bytes for the
same commit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from deploy import base
from scrubber import __version__

ROOT = Path(__file__).parents[1]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
REPOSITORY = "localhost/autoclave"  # a name that no registry has: the image is only on this machine
BUILDS = ("none", "cuda12", "cuda13")
CUDA = "cuda12"  # the default of the Dockerfile and of the chart: its CuPy works with the most drivers
KEEP_DIGESTS = ("buildah", "podman")  # builders that write what a registry gets, and give the same bytes each time
BUILDERS = (*KEEP_DIGESTS, "docker")
DOCKER, OCI = "docker-archive", "oci-archive"
YEAR_1980 = "315532800"  # zip files, and so wheels, know no earlier time
DEBIAN_IN = "DEBIAN_IMAGE"  # a variable, so that tests and the release build with the same one
NO_MOUNTS: Mapping[Path, str] = MappingProxyType({})


class CannotBuildError(Exception):
    """What is missing, and what to do."""


@dataclass(frozen=True)
class Builder:
    """A program that builds images, of one architecture, and runs commands in them."""

    name: str
    architecture: str = ""  # Debian's name; by default, that of this machine

    def build(self, tag: str, time: str, options: Sequence[str] = ()) -> None:
        """Build the image under this name. All its files get this time, in seconds, if the program can."""
        fixed: list[str | Path] = ["--pull=false", "-f", DOCKERFILE]
        times = [] if self.name == "docker" else [f"--timestamp={time}"]
        other = [f"--platform=linux/{self.architecture}"] if self.architecture else []
        command = [self.name, "build", *fixed, *times, *other, "-t", tag, *options, ROOT]
        _run(command, "cannot build the image", env=os.environ | self._isolation())

    def save(self, image: str, archive: Path, kind: str = DOCKER) -> None:
        """Write the image into a file, as ``docker save`` does, for a node without a registry.

        Or, by ``KEEP_DIGESTS``, as ``OCI``: as a registry gets it, with the digest that it has there.
        """
        archive.parent.mkdir(parents=True, exist_ok=True)
        archive.unlink(missing_ok=True)
        named = f":{image}" if kind == DOCKER else ""
        saving = ["save", "-o", str(archive), *([f"--format={kind}"] if kind == OCI else []), image]
        command = ["push", image, f"{kind}:{archive}{named}"] if self.name == "buildah" else saving
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

    def id(self, image: str) -> str:
        """The digest of all that the image holds, its labels included."""
        field = "{{.FromImageID}}" if self.name == "buildah" else "{{.Id}}"
        return self._output("inspect", "--type=image", f"--format={field}", image).stdout.strip()

    def works(self) -> bool:
        """Whether the program is installed and, for docker, its daemon answers."""
        return shutil.which(self.name) is not None and self._output("info").returncode == 0

    def _output(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [self.name, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | self._isolation())

    def _isolation(self) -> Mapping[str, str]:
        """Buildah's default needs an OCI runtime and control groups; its isolation ``chroot`` needs neither."""
        return {"BUILDAH_ISOLATION": os.environ.get("BUILDAH_ISOLATION", "chroot")} if self.name == "buildah" else {}


def find_builder(wanted: Sequence[str] = BUILDERS, architecture: str = "") -> Builder:
    """The first of these programs that works."""
    for builder in (Builder(name, architecture) for name in wanted):
        if builder.works():
            return builder
    start = "start docker, or " * ("docker" in wanted)
    raise CannotBuildError(
        f"cannot build the image: none of these works here: {', '.join(wanted)}; {start}install one (Debian: buildah)"
    )


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
    return REPOSITORY + tag_of(cuda)


def tag_of(cuda: str) -> str:
    """What follows the name of the repository."""
    return f":{__version__}" + (f"-{cuda}" if cuda != "none" else "")


def build(builder: Builder, cuda: str, tag: str, home: str = "", more: Sequence[str] = ()) -> None:
    """Build the image of this tree. ``home``: the page of the project that publishes it. ``more``: other options."""
    revision, created = _git("rev-parse", "HEAD"), _git("log", "-1", "--format=%cI")
    about = {"CUDA": cuda, "VERSION": __version__, "REVISION": revision, "CREATED": created}
    options = arguments({"DEBIAN": os.environ.get(DEBIAN_IN), **about})
    if home:  # a registry shows the image there, with the rights of that repository
        options += [f"--label=org.opencontainers.image.{name}={home}" for name in ("source", "url")]
    builder.build(tag, epoch(), [*options, *more, *secrets(os.environ, Path.home())])


def arguments(given: Mapping[str, str | None]) -> list[str]:
    """Those of the Dockerfile. It has defaults for what is not given."""
    return [f"--build-arg={name}={value}" for name, value in given.items() if value]


@cache
def epoch() -> str:
    """The time that all files get: that of the commit, so that the same commit gives the same bytes.

    It is asked once: a commit during a long build must not give two times.
    """
    return os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct") or YEAR_1980


def _git(*arguments: str) -> str:
    """Nothing, where this is not a checkout: the Dockerfile has defaults. Of a checkout git must know the commit."""
    if not (ROOT / ".git").exists():
        return ""
    try:
        run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise CannotBuildError("cannot ask git for the commit of this checkout: install git") from error
    if run.returncode != 0:  # as for root, in the checkout of another user: git says by which command it is trusted
        raise CannotBuildError(f"cannot ask git for the commit of this checkout: {run.stderr.strip()}")
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
        choices=BUILDS,
        default=CUDA,
        help="the CuPy inside: cuda12 [default] for drivers from 525 on, cuda13 from 580 on; none: simulated GPUs only",
    )
    parser.add_argument("--tag", help=f"the image's name; default: {name_of(CUDA)}")
    parser.add_argument(
        "--debian", help=f"the image of Debian 13 in which the base is made; default: ${DEBIAN_IN}, or the official one"
    )
    parser.add_argument(
        "--architecture",
        choices=base.ARCHITECTURES,
        default="",
        help="for another machine than this one, whose programs an emulator runs here (Debian: qemu-user-static)",
    )
    parser.add_argument("--builder", choices=BUILDERS, help="use this program; default: the first that works")
    parser.add_argument("--mirror", help=f"what has the archives debian and debian-security; default: {base.ARCHIVE}")
    parser.add_argument("--home", default="", help="the page of the project that publishes the image, for its labels")
    parser.add_argument("--archive", type=Path, help="also write the image to this file, as `docker save` does")
    parser.add_argument("--oci", type=Path, help="also write it to this file as a registry gets it; not with docker")
    options = parser.parse_args()
    able = KEEP_DIGESTS if options.oci else BUILDERS
    if options.builder and options.builder not in able:
        parser.error(f"{options.builder} cannot write an image as a registry gets it (--oci): use {' or '.join(able)}")
    try:
        builder = find_builder([options.builder] if options.builder else able, options.architecture)
        tag = options.tag or name_of(options.cuda)
        base_made = arguments({"DEBIAN": options.debian, "MIRROR": options.mirror})
        build(builder, options.cuda, tag, options.home, base_made)
        if options.archive:
            builder.save(tag, options.archive)
        if options.oci:
            builder.save(tag, options.oci, OCI)
    except CannotBuildError as error:
        sys.exit(str(error))
    print(tag)


if __name__ == "__main__":
    main()
