"""The base of the image, made of Debian's packages by mmdebstrap: each in the version that ``debian.lock`` names.

The first stage of the Dockerfile makes it. ``python -m deploy.base`` renews the lock, for both architectures; it needs
apt, no root, and snapshot.debian.org, which must have what the lock names. The same lock gives the same bytes: apt
checks the signature of the archive, and a version of a package never changes. Once the archive has newer versions, the
old ones come from snapshot.debian.org.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "deploy/debian.lock"
SUITE = "trixie"  # its Python is 3.13
# Besides what each Debian has. CuPy, grpcio and the compiler of the kernels load the library of C++.
NEEDED = ("ca-certificates", "libstdc++6", "netbase", "python3", "tzdata")
TO_BUILD = "python3-venv"  # for the stages that build
ARCHITECTURES = ("amd64", "arm64")
ARCHIVE = "http://deb.debian.org"  # signatures protect it
SNAPSHOT = "http://snapshot.debian.org/archive"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_HEAD = "# Debian {suite} at {time}, by `python -m deploy.base`: a package, its version, and where it is installed.\n"
_ESSENTIAL = "?and(?essential,?not(?exact-name(apt)))"  # apt takes itself for one
_LEFT_OUT = ("doc", "info", "locale", "lintian", "man")  # below /usr/share
# No trace of this machine and of the installation, no right of another user, and nothing compiled: the image does that.
_FINISH = (
    'cd "$1" && rm -rf etc/resolv.conf etc/hostname var/cache/* var/lib/apt var/log/* '
    "&& find . -xdev -type f -perm /6000 -exec chmod a-s {} + "
    "&& find . -xdev -name __pycache__ -prune -exec rm -r {} +"
)
Lock = dict[str, str]  # the version of each package


class NoBaseError(Exception):
    """Why there is none, and what to do."""


def mine() -> str:
    """Debian's name for this machine's architecture."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)


def entries(text: str) -> list[list[str]]:
    """The lines of a lock: a package, its version, and where it is installed only."""
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def locked(text: str, architecture: str, *, to_build: bool) -> Lock:
    """The releases that a lock names for an architecture."""
    where = {architecture, *(["build"] * to_build)}
    return {name: version for name, version, *only in entries(text) if where >= set(only)}


def make(to: Path, *, to_build: bool, mirror: str = ARCHIVE) -> None:
    """Write the root file system of this architecture into a directory. ``mirror``: has Debian's archives."""
    architecture = mine()
    text = LOCK.read_text(encoding="utf-8")
    wanted = (*NEEDED, *([TO_BUILD] * to_build))
    time = _time(text)
    asked = locked(text, architecture, to_build=to_build)
    for sources in (_sources(mirror), _sources(SNAPSHOT, time)):
        try:
            others = resolve(sources, architecture, wanted).items() ^ asked.items()
            if not others:
                break
            names = ", ".join(sorted({name for name, _ in others}))
            print(f"{sources[0].split()[-3]} has other versions than the lock: {names}", file=sys.stderr)
        except subprocess.CalledProcessError as error:
            print(error.stderr, file=sys.stderr)
    else:
        raise NoBaseError(
            f"cannot make the base: neither the archive nor the snapshot of {time} has the versions of {LOCK.name}; "
            "renew it by `python -m deploy.base`"
        )
    paths = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _LEFT_OUT]
    command = [
        *(
            "mmdebstrap",
            "--quiet",
            f"--architectures={architecture}",
            "--variant=essential",
            f"--include={','.join(wanted)}",
            "--skip=output/dev",
        ),
        *(*paths, "--dpkgopt=path-include=/usr/share/doc/*/copyright", f"--customize-hook={_FINISH}"),
        *(SUITE, str(to), *sources),
    ]
    epoch = int(datetime.strptime(time, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp())
    environment = ("env", f"SOURCE_DATE_EPOCH={epoch}", "LC_ALL=C.UTF-8")
    if (ended := subprocess.run([*environment, *command], stdout=sys.stderr, check=False).returncode) != 0:
        raise NoBaseError(f"cannot make the base: mmdebstrap ended with {ended}")


def _time(lock: str) -> str:
    return str(re.findall(r"at (\S+),", lock)[0])


def resolve(sources: Sequence[str], architecture: str, wanted: Sequence[str]) -> Lock:
    """What apt would install, with its versions: all that each Debian has, what is wanted, and what these need."""
    with tempfile.TemporaryDirectory(prefix="autoclave-apt-") as folder:
        place = Path(folder)
        (place / "status").touch()
        (place / "sources.list").write_text("".join(f"{line}\n" for line in sources), encoding="utf-8")
        for name in ("state/lists/partial", "cache/archives/partial"):
            (place / name).mkdir(parents=True)
        settings = {
            "Dir::State": place / "state", "Dir::State::status": place / "status", "Dir::Cache": place / "cache",
            "Dir::Etc::SourceList": place / "sources.list", "Dir::Etc::SourceParts": "/dev/null",
            "Dir::Etc::Preferences": "/dev/null", "Dir::Etc::PreferencesParts": "/dev/null",
            "APT::Architecture": architecture, "APT::Architectures": architecture, "APT::Sandbox::User": "",
            "APT::Install-Recommends": "false", "Acquire::Languages": "none",
        }  # fmt: skip
        apt = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in settings.items())]
        _said(*apt, "-oAPT::Update::Error-Mode=any", "update")
        said = _said(*apt, "--simulate", "install", _ESSENTIAL, *wanted)
    return dict(re.findall(r"^Inst (\S+) \((\S+)", said, re.MULTILINE))


def write_lock(mirror: str = ARCHIVE) -> str:
    """The lock as it would be now."""
    sources = _sources(mirror)
    lines = list[str]()
    found = {each: resolve(sources, each, (*NEEDED, TO_BUILD)) for each in ARCHITECTURES}
    shipped = {each: resolve(sources, each, NEEDED) for each in ARCHITECTURES}
    for name in sorted({name for lock in found.values() for name in lock}):
        versions = {each: lock[name] for each, lock in found.items() if name in lock}
        build = " build" if not any(name in lock for lock in shipped.values()) else ""
        if len(versions) == len(ARCHITECTURES) and len(set(versions.values())) == 1:
            lines.append(f"{name} {versions[ARCHITECTURES[0]]}{build}\n")
        else:
            lines += [f"{name} {version} {each}{build}\n" for each, version in versions.items()]
    return _HEAD.format(suite=SUITE, time=_said("date", "-u", "+%Y%m%dT%H%M%SZ").strip()) + "".join(lines)


def renewed(mirror: str = ARCHIVE) -> str:
    """The lock as it would be now; NoBaseError unless the snapshot that it names has its versions.

    Between a change of the archive and its next snapshot it has not, and the base could never be made again.
    """
    text = write_lock(mirror)
    for architecture in ARCHITECTURES:
        there = resolve(_sources(SNAPSHOT, _time(text)), architecture, (*NEEDED, TO_BUILD))
        if others := there.items() ^ locked(text, architecture, to_build=True).items():
            names = ", ".join(sorted({name for name, _ in others}))
            raise NoBaseError(
                f"cannot renew the lock: {SNAPSHOT} does not have these versions of {architecture} yet: {names}; "
                "it takes them in four times a day, so try again later"
            )
    return text


def _sources(place: str, time: str = "") -> list[str]:
    options = f"[signed-by={_KEYRING}{' check-valid-until=no' if time else ''}]"
    suites = (("debian", SUITE), ("debian", f"{SUITE}-updates"), ("debian-security", f"{SUITE}-security"))
    return [f"deb {options} {'/'.join(filter(None, (place, name, time)))} {suite} main" for name, suite in suites]


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Renew the lock, or make a base of it."""
    parser = argparse.ArgumentParser(prog="python -m deploy.base", description=__doc__)
    parser.add_argument("--make", type=Path, metavar="DIRECTORY", help="make a base here; takes root and mmdebstrap")
    parser.add_argument("--to-build", action="store_true", help="with what the stages that build need")
    parser.add_argument("--mirror", default=ARCHIVE, help="has the archives debian and debian-security; %(default)s")
    parser.add_argument("--no-snapshot", action="store_true", help="renew the lock where no snapshot can be asked")
    options = parser.parse_args()
    try:
        if options.make is not None:
            make(options.make, to_build=options.to_build, mirror=options.mirror)
        else:
            renew = write_lock if options.no_snapshot else renewed
            LOCK.write_text(renew(options.mirror), encoding="utf-8")
    except NoBaseError as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:
        sys.exit(f"cannot renew the lock: {error.stderr.strip()}")


if __name__ == "__main__":
    main()
