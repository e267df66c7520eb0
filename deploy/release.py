"""Make all that a tag publishes: ``python -m deploy.release`` (``make release``), into build/release.

Wheel, sdist, chart, manifests, the plugin of kubectl, bills of materials, notes, checksums, and the image as an
archive. Then each is installed from there in a clean place and tried. The same commit gives the same bytes, except for
the image.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import string
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import helm_python
from packaging.requirements import Requirement
from packaging.version import Version

from deploy import generate, image
from ground import public_names
from scrubber import __version__

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build" / "release"
HOME = "https://name-your-home.invalid/autoclave"  # nobody can own a name below invalid
USUAL = ("nvidia", "in-front", "observe-only", "dra", "simulated")
NOTES, SUMS = "NOTES.md", "SHA256SUMS"
ARCHIVE = "autoclave-image.tar"
PYTHON_VERSION = str(Version(__version__))  # as wheel and sdist have it: 0.1.0rc1 for 0.1.0-rc.1
UNFINISHED = {  # pages, and what they say until a maintainer has written something else
    "SECURITY.md": "There is no release yet",
    "RELEASE.md": "There is no release yet",
    "MAINTAINERS.md": "No maintainer is named yet",
    ".github/CODEOWNERS": "@NAME",
}
IN_THE_IMAGE = {  # what the markers of the locks ask for
    "python_version": "3.13",
    "python_full_version": "3.13.0",
    "sys_platform": "linux",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}
Command = Sequence[str | Path]


class CannotReleaseError(Exception):
    """What is missing or wrong, and what to do."""


def write_packages(out: Path) -> None:
    """Wheel and sdist."""
    _run(
        [sys.executable, "-m", "hatchling", "build", "--directory", out],
        env=os.environ | {"SOURCE_DATE_EPOCH": image.epoch()},
    )


def write_chart(out: Path, home: str) -> None:
    """The chart as Helm packs it, with the home page, and without the times and the order of this machine."""
    files = {}
    with tempfile.TemporaryDirectory() as folder, tarfile.open(generate.chart().save(folder)) as packed:
        for member in packed.getmembers():
            content = packed.extractfile(member)
            files[member.name] = content.read() if content else b""
    files["autoclave/Chart.yaml"] += f"home: {home}\nsources: [{home}]\n".encode()
    _pack(out / f"autoclave-{__version__}.tgz", files)


def write_manifests(out: Path, repository: str) -> None:
    """The usual installations, for a cluster without Helm: one file each, with its namespace."""
    space = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": generate.NAMESPACE, "labels": generate.PRIVILEGED},
    }
    for name in USUAL:
        templates = generate.objects({**generate.OVERLAYS[name], "image": {"repository": repository}})
        text = io.StringIO(newline="\n")
        generate.yaml().dump_all([space, *(doc for docs in templates.values() for doc in docs)], text)
        (out / f"autoclave-{__version__}-{name}.yaml").write_text(text.getvalue(), encoding="utf-8")


def write_kubectl_plugin(out: Path, home: str) -> None:
    """The plugin of kubectl, and its manifest for krew."""
    archive = out / f"kubectl-autoclave-{__version__}.tar.gz"
    files = {"LICENSE": ROOT / "LICENSE", "kubectl-autoclave": ROOT / "deploy/kubectl/kubectl-autoclave"}
    _pack(archive, {name: path.read_bytes() for name, path in files.items()}, programs=("kubectl-autoclave",))
    template = string.Template((ROOT / ".krew.yaml").read_text(encoding="utf-8").partition("\napiVersion")[2])
    filled = "apiVersion" + template.substitute(home=home, version=__version__, sha256=_digest(archive))
    (out / "autoclave.krew.yaml").write_text(filled, encoding="utf-8")


def write_bills(out: Path) -> None:
    """What each build of the image takes from the package index, in CycloneDX. The image has a bill of its own."""
    recipe = image.DOCKERFILE.read_text(encoding="utf-8")
    (pinned,) = re.findall(r"^ARG CYCLONEDX=(\S+)$", recipe, re.MULTILINE)
    for lock in sorted((ROOT / "deploy/requirements").glob("*.lock")):
        bill = out / f"autoclave-{__version__}-{lock.stem}.cdx.json"
        tool: Command = [
            _uv(),
            "tool",
            "run",
            "--quiet",
            "--from",
            f"cyclonedx-bom=={pinned}",
            "cyclonedx-py",
            "requirements",
        ]
        about = ["--pyproject", "pyproject.toml", "--mc-type", "application", "--output-reproducible"]
        with tempfile.TemporaryDirectory() as folder:
            joined = Path(folder, lock.name)
            joined.write_text(in_the_image(_joined(lock)), encoding="utf-8")
            _run([*tool, *about, "--of", "JSON", "-o", bill, joined])
        document = json.loads(bill.read_text(encoding="utf-8"))
        document["metadata"]["component"]["version"] = __version__  # pyproject.toml says where it stands, not which
        bill.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _joined(lock: Path) -> str:
    """A lock, and the one that its first line names, as one file: the tool names a package by its line in the file."""
    text = lock.read_text(encoding="utf-8")
    first, _, rest = text.partition("\n")
    return _joined(lock.with_name(first.removeprefix("-r "))) + rest if first.startswith("-r ") else text


def in_the_image(lock: str) -> str:
    """The lock without the packages that its markers leave out of the image."""
    parts = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)  # before each package; its hashes are indented
    return "".join(part for part in parts if _taken(part.partition("\n")[0].rstrip("\\ ")))


def _taken(line: str) -> bool:
    return not line[:1].isalnum() or (marker := Requirement(line).marker) is None or marker.evaluate(IN_THE_IMAGE)


def notes(changelog: str, tag: str | None) -> str:
    """The part of the changelog for this version. It may still be called unreleased, unless a tag publishes it.

    A pre-release has the part of the version that it precedes.
    """
    parts = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    named = {part.partition("]")[0].lstrip("[") if part.startswith("[") else part.split()[0]: part for part in parts}
    version = __version__.partition("-")[0]
    part = named.get(version) or (None if tag else named.get("Unreleased"))
    if part is None:
        raise CannotReleaseError(f"cannot find the section [{version}] in CHANGELOG.md; write it, and tag again")
    if tag and not _precedes(tag) and "unreleased" in part.partition("\n")[0].lower():
        raise CannotReleaseError(
            f"cannot release {tag}: CHANGELOG.md calls it unreleased; write its date, and tag again"
        )
    return part.partition("\n")[2].strip() + "\n"


def write_image(out: Path) -> image.Builder:
    """The image for NVIDIA GPUs, as `docker save` writes it."""
    builder = image.find_builder()
    tag = image.name_of(image.CUDA)
    image.build(builder, image.find_bases(builder), image.CUDA, tag)
    builder.save(tag, out / ARCHIVE)
    return builder


def write_sums(out: Path) -> None:
    """The digest of each file, as sha256sum reads it."""
    lines = [f"{_digest(path)}  {path.name}\n" for path in sorted(out.iterdir()) if path.name != SUMS]
    (out / SUMS).write_text("".join(lines), encoding="utf-8")


def unfinished() -> list[str]:
    """What a maintainer must still fill in before the first release, one sentence each."""
    pages = [f"{page} says {words!r}" for page, words in UNFINISHED.items() if words in (ROOT / page).read_text()]
    if public_names.DOMAIN.endswith(".internal"):
        pages.append(
            f"labels, drivers and receipts would be named below the placeholder {public_names.DOMAIN} for ever: "
            f"replace it by a domain of the project in all files that `git grep -l {public_names.DOMAIN}` lists"
        )
    return pages


def _precedes(tag: str) -> bool:
    """Whether it is the tag of a pre-release: a rehearsal, which may be made from an unfinished tree."""
    return "-" in tag


def make(out: Path, *, home: str, repository: str, tag: str | None) -> None:
    """All files that need no package index and no builder of images."""
    if tag not in {None, f"v{__version__}"}:
        raise CannotReleaseError(
            f"cannot release {tag}: scrubber/__init__.py says {__version__}; change it, or tag v{__version__}"
        )
    if tag and not _precedes(tag) and (lacks := unfinished()):
        raise CannotReleaseError(
            f"cannot release {tag}: the tree is not finished (RELEASE.md, Before the first release)\n- "
            + "\n- ".join(lacks)
        )
    shutil.rmtree(out, ignore_errors=True)  # a file of another version must not stay
    out.mkdir(parents=True)
    (out / NOTES).write_text(notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), tag), encoding="utf-8")
    write_packages(out)
    write_chart(out, home)
    write_manifests(out, repository)
    write_kubectl_plugin(out, home)


def try_wheel(out: Path) -> None:
    """Install the wheel as on a node, and run it."""
    (wheel,) = out.glob("*.whl")
    with tempfile.TemporaryDirectory() as folder:
        clean = Path(folder) / "clean"
        _run([_uv(), "venv", "--quiet", "--python", sys.executable, clean])
        install: Command = [_uv(), "pip", "install", "--quiet", "--python", clean / "bin/python"]
        _run([*install, "--require-hashes", "--only-binary", ":all:", "-r", "deploy/requirements/none.lock"])
        _run([*install, "--no-deps", wheel])
        program = clean / "bin" / "autoclave"
        if __version__ not in _run([program, "version"], cwd=clean):
            raise CannotReleaseError(f"cannot run {wheel.name}: `autoclave version` does not say {__version__}")
        # Without a service the doctor ends with 1. It must say which findings it has.
        doctor: Command = [program, "doctor", "--without-kubernetes", "--run-dir", clean / "run", "-o", "json"]
        if not json.loads(_run(doctor, cwd=clean, ends=1))["findings"]:
            raise CannotReleaseError(f"cannot run {wheel.name}: `autoclave doctor` has no findings without a service")


def try_sdist(out: Path) -> None:
    """Build a wheel from the sdist: it must be the wheel of the release."""
    (wheel,) = out.glob("*.whl")
    with tempfile.TemporaryDirectory() as folder:
        _run(["tar", "-xzf", out / f"autoclave-{PYTHON_VERSION}.tar.gz", "-C", folder])
        build: Command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder]
        tree = Path(folder) / f"autoclave-{PYTHON_VERSION}"
        compiler = str(ROOT / "build/nvrtc")  # the sdist has no compiled kernels: pip would fetch it
        _run(build, cwd=tree, env=os.environ | {"SOURCE_DATE_EPOCH": image.epoch(), "PYTHONPATH": compiler})
        if (Path(folder) / wheel.name).read_bytes() != wheel.read_bytes():
            raise CannotReleaseError("cannot release the sdist: the wheel that is built from it has other bytes")


def try_chart(out: Path, repository: str) -> None:
    """Render the packed chart for each usual installation: it must give what the chart in the tree gives."""
    packed = helm_python.Chart.load_archive((out / f"autoclave-{__version__}.tgz").read_bytes())
    for name in USUAL:
        values = {**generate.OVERLAYS[name], "image": {"repository": repository}}
        texts = packed.render(values, name=generate.NAME, namespace=generate.NAMESPACE)
        rendered = {path.removeprefix("autoclave/templates/"): text for path, text in texts.items()}
        if any(rendered[path] != text for path, text in generate.render(values).items()):
            raise CannotReleaseError(f"cannot release the chart: packed, it renders {name} in another way")


def try_kubectl_plugin(out: Path) -> None:
    """Unpack the plugin of kubectl, and ask for its help."""
    with tempfile.TemporaryDirectory() as folder:
        _run(["tar", "-xzf", out / f"kubectl-autoclave-{__version__}.tar.gz", "-C", folder])
        kubectl = Path(folder) / "kubectl"  # the plugin wants one in PATH, also for its help
        kubectl.symlink_to("/bin/true")
        path = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
        if "kubectl autoclave" not in _run([Path(folder) / "kubectl-autoclave", "--help"], env=os.environ | path):
            raise CannotReleaseError("cannot release the plugin of kubectl: its --help is empty")


def _pack(archive: Path, files: Mapping[str, bytes], programs: Iterable[str] = ()) -> None:
    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=int(image.epoch()), fileobj=raw) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), int(image.epoch())
            member.mode = 0o755 if name in programs else 0o644
            tar.addfile(member, io.BytesIO(content))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _uv() -> Path:
    return Path(sys.executable).parent / "uv"


def _run(command: Command, cwd: Path = ROOT, env: Mapping[str, str] | None = None, ends: int = 0) -> str:
    run = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if run.returncode != ends:
        words = " ".join(str(word) for word in command)
        raise CannotReleaseError(f"cannot make the release: `{words}` ended with {run.returncode}\n{run.stderr}")
    return run.stdout


def main() -> None:
    """Make the files, try them, and list them."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description=__doc__)
    parser.add_argument("--tag", help="refuse to go on if this tag, such as v0.1.0, is not that of the tree")
    parser.add_argument("--home", default=HOME, help="the home page, for chart and krew; default: %(default)s")
    parser.add_argument(
        "--repository",
        default=generate.IMAGE["repository"],
        help="where the manifests take the image from; default: %(default)s",
    )
    parser.add_argument("--no-image", action="store_true", help="build no image")
    options = parser.parse_args()
    try:
        make(OUT, home=options.home, repository=options.repository, tag=options.tag)
        write_bills(OUT)
        if not options.no_image:
            try:
                builder = write_image(OUT)
                if __version__ not in builder.run(image.name_of(image.CUDA), ["autoclave", "version"]).stdout:
                    raise CannotReleaseError(
                        f"cannot run the image: `autoclave version` in it does not say {__version__}"
                    )
            except image.CannotBuildError as error:
                if options.tag:
                    raise
                print(f"the release has no image: {error}", file=sys.stderr)
        write_sums(OUT)
        try_wheel(OUT)
        try_sdist(OUT)
        try_chart(OUT, options.repository)
        try_kubectl_plugin(OUT)
    except (CannotReleaseError, image.CannotBuildError) as error:
        sys.exit(str(error))
    print((OUT / SUMS).read_text(encoding="utf-8"), end="")


if __name__ == "__main__":
    main()
