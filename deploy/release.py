"""Make all that a tag publishes: ``python -m deploy.release`` (``make release``), into build/release.

Wheel, sdist, chart, manifests, the plugin of kubectl, bills of materials, notes, checksums, and the image as an
archive. Then each is installed from there in a clean place and tried. The same commit gives the same bytes; the image
too, where buildah or podman builds it.
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
from typing import Any

import helm_python
from packaging.requirements import Requirement
from packaging.version import Version

from deploy import base, generate, image
from ground import public_names
from scrubber import __version__

ROOT = Path(__file__).parents[1]
OUT, IMAGES = ROOT / "build" / "release", ROOT / "build" / "images"
INDEX = "application/vnd.oci.image.index.v1+json"
HOME = "https://name-your-home.invalid/autoclave"  # nobody can own a name below invalid
USUAL = ("nvidia", "in-front", "observe-only", "dra", "simulated")
NOTES, SUMS = "NOTES.md", "SHA256SUMS"
BEGIN = (
    f"`autoclave-{__version__}-in-front.yaml` begins with the policy `observe`, which proves nothing. "
    "[How to go on](docs/in-front.md#without-the-chart) when NVIDIA's plugin registers with Autoclave.\n"
)
TAG = re.compile(r"v[0-9]+[.][0-9]+[.][0-9]+(-[a-z]+[.][0-9]+)?")  # git allows much more, such as commands of a shell
TAG_IN = "RELEASE_TAG"  # a variable: what stands in arguments of make is read by a shell once more
ARCHIVE = "autoclave-image.tar"
PYTHON_VERSION = str(Version(__version__))  # as wheel and sdist have it: 0.1.0rc1 for 0.1.0-rc.1
UNFINISHED = {  # pages, and what they say until a maintainer has written something else
    "SECURITY.md": "There is no release yet",
    "RELEASE.md": "There is no release yet",
    "README.md": "no release and no published image yet",
    "CHANGELOG.md": "with an image that you",
    "docs/install.md": "none is published",
    "deploy/helm/autoclave/README.md": "No image is published",
    "deploy/helm/autoclave/values.yaml": "no image is published",
    "deploy/helm/autoclave/templates/_checks.tpl": "no image of Autoclave is published",
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


def write_manifests(out: Path, repository: str, digests: Mapping[str, str]) -> None:
    """The usual installations, for a cluster without Helm: one file each, with its namespace.

    ``digests``: of the images, by their build. Without one, a manifest names its image by the tag.
    """
    space = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": generate.NAMESPACE, "labels": generate.PRIVILEGED},
    }
    for name in USUAL:
        values = generate.OVERLAYS[name]
        build = "none" if values.get("backend") == "simulated" else image.CUDA
        named = {"repository": repository, "digest": digests.get(build, "")}
        templates = generate.objects({**values, "image": named})
        text = io.StringIO(newline="\n")
        generate.yaml().dump_all([space, *(doc for docs in templates.values() for doc in docs)], text)
        (out / f"autoclave-{__version__}-{name}.yaml").write_text(text.getvalue(), encoding="utf-8")


def write_indexes(out: Path, images: Path) -> dict[str, str]:
    """One file for each build of the image, which a registry gets as it is; its digest, by the build.

    It names the images of all architectures. ``images``: what `make image` has written with ``--oci``, as
    BUILD-MACHINE.tar.
    """
    digests = {}
    for build in image.BUILDS:
        if archives := sorted(images.glob(f"{build}-*.tar")):
            described = [_described(each) for each in archives]
            if len({each["platform"]["architecture"] for each in described}) < len(described):
                raise CannotReleaseError(f"cannot name the images {build} in {images}: two are for one architecture")
            document = {"schemaVersion": 2, "mediaType": INDEX, "manifests": described}
            (path := out / index_of(build)).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
            digests[build] = f"sha256:{_digest(path)}"
    if not digests:
        raise CannotReleaseError(
            f"cannot name the images in {images}: it has no BUILD-MACHINE.tar, as cuda12-arm64.tar"
        )
    return digests


def index_of(build: str) -> str:
    """The name of that file."""
    return f"autoclave-{__version__}-{build}.index.json"


def _described(archive: Path) -> dict[str, Any]:
    with tarfile.open(archive) as opened:

        def read(name: str) -> dict[str, Any]:
            file = opened.extractfile(name)
            document: dict[str, Any] = json.load(file) if file else {}
            return document

        [manifest] = read("index.json")["manifests"]
        config = read(_blob(read(_blob(manifest["digest"]))["config"]["digest"]))
    known = {name: manifest[name] for name in ("mediaType", "digest", "size")}
    return known | {"platform": {name: config[name] for name in ("architecture", "os")}}


def _blob(digest: str) -> str:
    """Its place in such an archive."""
    return f"blobs/{digest.replace(':', '/')}"


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


def with_whole_links(text: str, home: str) -> str:
    """The text with links to the pages of the tag: it is shown where relative links lead nowhere."""
    return re.sub(r"(\]\(|^\[[^]]+\]: )(?!https?:|#)", rf"\g<1>{home}/blob/v{__version__}/", text, flags=re.MULTILINE)


def build_image() -> image.Builder:
    """Build the image for NVIDIA GPUs, and keep it as a registry gets it."""
    builder = image.find_builder(image.KEEP_DIGESTS)
    tag = image.name_of(image.CUDA)
    image.build(builder, image.CUDA, tag)
    shutil.rmtree(IMAGES, ignore_errors=True)
    builder.save(tag, IMAGES / f"{image.CUDA}-{base.mine()}.tar", image.OCI)
    if __version__ not in builder.run(tag, ["autoclave", "version"]).stdout:
        raise CannotReleaseError(f"cannot run the image: `autoclave version` in it does not say {__version__}")
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
            f"labels, drivers and receipts would be named below the placeholder {public_names.DOMAIN} forever: "
            f"replace it by a domain of the project in all files that `git grep -l {public_names.DOMAIN}` lists, "
            "and its reverse in the labels of deploy/Dockerfile"
        )
    return pages


def _precedes(tag: str) -> bool:
    """Whether it is the tag of a pre-release: a rehearsal, which may be made from an unfinished tree."""
    return "-" in tag


def check_tag(tag: str) -> None:
    """CannotReleaseError unless this tree may be released under this tag."""
    if not TAG.fullmatch(tag):
        raise CannotReleaseError(
            f"cannot release the tag {tag!r}: name it by the version, such as v0.1.0 or v0.1.0-rc.1"
        )
    if tag != f"v{__version__}":
        raise CannotReleaseError(
            f"cannot release {tag}: scrubber/__init__.py says {__version__}; change it, or tag v{__version__}"
        )
    if not _precedes(tag) and (lacks := unfinished()):
        raise CannotReleaseError(
            f"cannot release {tag}: the tree is not finished (RELEASE.md, Before the first release)\n- "
            + "\n- ".join(lacks)
        )


def make(out: Path, *, home: str, repository: str, tag: str | None, images: Path | None = None) -> None:
    """All files that need no package index and no builder of images. ``images``: where those are that were built."""
    shutil.rmtree(out, ignore_errors=True)  # a file of another version must not stay
    out.mkdir(parents=True)
    digests = write_indexes(out, images) if images else {}
    text = with_whole_links(f"{notes((ROOT / 'CHANGELOG.md').read_text(encoding='utf-8'), tag)}\n{BEGIN}", home)
    for build, digest in digests.items():
        text += f"\nImage `{repository}{image.tag_of(build)}`: `{digest}`\n"
    (out / NOTES).write_text(text, encoding="utf-8")
    write_packages(out)
    write_chart(out, home)
    write_manifests(out, repository, digests)
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


def _built(*, wanted: bool) -> image.Builder | None:
    """What has built the image. None if nothing can, unless it is wanted."""
    try:
        return build_image()
    except image.CannotBuildError as error:
        if wanted:
            raise
        print(f"the release has no image: {error}", file=sys.stderr)
        return None


def main() -> None:
    """Make the files, try them, and list them."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description=__doc__)
    parser.add_argument(
        "--tag", default=os.environ.get(TAG_IN),
        help=f"refuse to go on if this tag, such as v0.1.0, is not that of the tree; default: ${TAG_IN}",
    )  # fmt: skip
    parser.add_argument("--home", default=HOME, help="the home page, for chart and krew; default: %(default)s")
    parser.add_argument(
        "--repository",
        default=generate.IMAGE["repository"],
        help="where the manifests take the image from; default: %(default)s",
    )
    parser.add_argument("--no-image", action="store_true", help="build no image")
    parser.add_argument(
        "--images", type=Path, metavar="FOLDER",
        help="build no image, and name these: what `make image` has written with --oci, as BUILD-MACHINE.tar",
    )  # fmt: skip
    options = parser.parse_args()
    try:
        if options.tag:
            check_tag(options.tag)
        builder = None if options.images or options.no_image else _built(wanted=bool(options.tag))
        images = options.images or (IMAGES if builder else None)
        make(OUT, home=options.home, repository=options.repository, tag=options.tag, images=images)
        write_bills(OUT)
        if builder:
            builder.save(image.name_of(image.CUDA), OUT / ARCHIVE)
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
