"""`make release`: what it makes is whole, refused where it must be, and the same each time."""

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from deploy import base, rehearsal, release
from ground import public_names
from scrubber import __version__

HOME = "https://home.example/team/autoclave"
REPOSITORY = "registry.example/team/autoclave"
CHART = f"autoclave-{__version__}.tgz"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("release")
    release.make(out, home=HOME, repository=REPOSITORY, tag=None)
    return out


def test_two_runs_make_the_same_bytes(made, tmp_path):
    release.make(tmp_path / "again", home=HOME, repository=REPOSITORY, tag=None)
    first, second = ({path.name: path.read_bytes() for path in out.iterdir()} for out in (made, tmp_path / "again"))
    assert first.keys() == second.keys() > {release.NOTES, CHART, "autoclave.krew.yaml"}
    assert [name for name, content in first.items() if second[name] != content] == []


def test_the_notes_link_to_pages_of_the_tag(made):
    links = re.findall(r"(?:\]\(|^\[[^]]+\]: )([^)\s]+)", (made / release.NOTES).read_text(), re.MULTILINE)
    pages = [link.removeprefix(f"{HOME}/blob/v{__version__}/").partition("#")[0] for link in links]
    assert "docs/threat-model.md" in pages
    assert [page for page in pages if not (page.startswith("https://") or (release.ROOT / page).is_file())] == []


def test_the_sdist_builds_the_wheel_of_the_release(made):
    release.try_sdist(made)


def test_the_sdist_has_every_file_of_the_tree(made):
    """So `make demo`, `make test`, `make image` and the chart work in it."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=release.ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this is no checkout: git cannot say which files are the tree")
    (archive,) = made.glob("autoclave-*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {member.name.partition("/")[2] for member in packed.getmembers() if not member.isdir()}
    assert names == {*filter(None, listed.stdout.split("\0")), "PKG-INFO"}


def test_the_packed_chart_renders_as_the_chart_in_the_tree(made):
    release.try_chart(made, REPOSITORY)
    with tarfile.open(made / CHART) as packed:
        chart = yaml.safe_load(packed.extractfile("autoclave/Chart.yaml"))
    assert (chart["home"], chart["sources"], chart["version"]) == (HOME, [HOME], __version__)


def test_a_packed_chart_that_renders_otherwise_is_refused(made, tmp_path):
    altered = gzip.decompress((made / CHART).read_bytes()).replace(b"hostPID: true", b"hostPID: null")
    (tmp_path / CHART).write_bytes(gzip.compress(altered))
    with pytest.raises(release.CannotReleaseError, match="renders nvidia in another way"):
        release.try_chart(tmp_path, REPOSITORY)


@pytest.mark.parametrize("name", release.USUAL)
def test_a_manifest_has_its_namespace_and_the_named_image(made, name):
    objects = list(yaml.safe_load_all((made / f"autoclave-{__version__}-{name}.yaml").read_text()))
    assert (objects[0]["kind"], objects[0]["metadata"]["name"]) == ("Namespace", "autoclave")
    sets = [thing["spec"]["template"]["spec"] for thing in objects if thing["kind"] == "DaemonSet"]
    images = {part["image"].partition(":")[0] for pod in sets for part in pod["containers"]}
    assert images == {REPOSITORY}


def test_the_manifest_in_front_begins_with_observe(made):
    """Any other policy scrubs GPUs that the other plugin still hands out."""
    manifest = f"autoclave-{__version__}-in-front.yaml"
    assert re.findall(r"--policy=\S+", (made / manifest).read_text()) == ["--policy=observe"]
    assert f"`{manifest}` begins with the policy `observe`" in (made / release.NOTES).read_text()


def test_manifests_name_the_images_that_were_built(tmp_path):
    (images := tmp_path / "images").mkdir()
    for machine in ("amd64", "arm64"):
        manifest = {"mediaType": "of/it", "digest": f"sha256:{machine}", "size": 1, "annotations": {"name": "1"}}
        documents = {
            "index.json": {"schemaVersion": 2, "manifests": [manifest]},
            f"blobs/sha256/{machine}": {"config": {"digest": "sha256:c"}},
            "blobs/sha256/c": {"architecture": machine, "os": "linux", "config": {}},
        }
        with tarfile.open(images / f"cuda12-{machine}.tar", "w") as archive:
            for name, content in ((name, json.dumps(it).encode()) for name, it in documents.items()):
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    digests = release.write_indexes(tmp_path, images)
    index = (tmp_path / release.index_of("cuda12")).read_bytes()
    assert digests == {"cuda12": f"sha256:{hashlib.sha256(index).hexdigest()}"}
    assert [(it["digest"], it["platform"]["architecture"]) for it in json.loads(index)["manifests"]] == [
        ("sha256:amd64", "amd64"), ("sha256:arm64", "arm64")
    ]  # fmt: skip
    release.write_manifests(tmp_path, REPOSITORY, digests)
    found = {name: (tmp_path / f"autoclave-{__version__}-{name}.yaml").read_text() for name in ("nvidia", "simulated")}
    assert f"image: {REPOSITORY}@{digests['cuda12']}\n" in found["nvidia"]
    assert f"image: {REPOSITORY}:{__version__}\n" in found["simulated"]  # this one was not built
    shutil.copy(images / "cuda12-arm64.tar", images / "cuda12-amd64.tar")
    with pytest.raises(release.CannotReleaseError, match="two are for one architecture"):
        release.write_indexes(tmp_path, images)
    with pytest.raises(release.CannotReleaseError, match=r"has no BUILD-MACHINE\.tar"):
        release.write_indexes(tmp_path, tmp_path / "none")


def test_a_file_that_differs_from_its_checksum_ends_the_rehearsal(tmp_path):
    (tmp_path / "chart.tgz").write_bytes(b"chart")
    release.write_sums(tmp_path)
    assert rehearsal.check_sums(tmp_path) == 1
    (tmp_path / "chart.tgz").write_bytes(b"Chart")
    with pytest.raises(rehearsal.FailedError, match=r"chart\.tgz has another digest"):
        rehearsal.check_sums(tmp_path)


def test_a_rehearsal_without_an_image_says_what_builds_one(tmp_path, monkeypatch):
    """`make release` has made all other files, and said on stderr that it has no image."""
    monkeypatch.setattr(rehearsal, "PROGRAMS", {})
    monkeypatch.setattr(release, "OUT", tmp_path)
    with pytest.raises(SystemExit, match="`make release` first, where buildah or podman works"):
        rehearsal.main()


def test_a_bill_lists_only_what_its_image_installs():
    lock = (
        "-r none.lock\na==1 ; sys_platform == 'emscripten' \\\n    --hash=x\nb==2 ; python_full_version >= '3.12' \\\n"
    )
    kept = lock.replace("a==1 ; sys_platform == 'emscripten' \\\n    --hash=x\n", "")
    assert release.in_the_image(lock) == kept != lock
    shipped = base.locked(base.LOCK.read_text(), base.ARCHITECTURES[0], to_build=False)["python3"]
    assert shipped.startswith(f"{release.IN_THE_IMAGE['python_version']}.")


def test_the_plugin_of_kubectl_runs_and_krew_has_its_digest(made):
    release.try_kubectl_plugin(made)
    manifest = yaml.safe_load((made / "autoclave.krew.yaml").read_text())
    [platform] = manifest["spec"]["platforms"]
    archive = made / platform["uri"].rpartition("/")[2]
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert platform["uri"].startswith(f"{HOME}/releases/download/v{__version__}/")


def test_a_tag_of_another_version_is_refused():
    with pytest.raises(release.CannotReleaseError, match=r"cannot release v9\.9\.9: scrubber/__init__\.py says"):
        release.check_tag("v9.9.9")


def test_the_name_of_a_tag_is_not_run_as_code(tmp_path):
    """As the workflow `release` gets it, by the real Makefile and the real program."""
    pwned = tmp_path / "pwned"
    tag = f"v{__version__}-rc.1`>{pwned}`"
    legal = subprocess.run(["git", "check-ref-format", f"refs/tags/{tag}"], check=False)
    steps = yaml.safe_load((release.ROOT / ".github/workflows/release.yml").read_text())["jobs"]["files"]["steps"]
    [step] = [step for step in steps if "make release" in step.get("run", "")]
    [variable] = [name for name, value in step["env"].items() if "github.ref_name" in value]
    made = " ".join(f"-o {target}" for target in (".venv/.ready", "scrubber/cuda/kernels/scrub.ptx"))
    make = tmp_path / "make"
    make.write_text(f'#!/bin/sh\nPATH=${{PATH#*:}} exec make {made} BIN={Path(sys.executable).parent} "$@"\n')
    make.chmod(0o755)
    run = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", step["run"]], cwd=release.ROOT, capture_output=True, text=True,
        check=False, env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_REPOSITORY": "a/b",
                                       "GITHUB_SERVER_URL": "https://git.example", variable: tag},
    )  # fmt: skip
    assert (legal.returncode, pwned.exists()) == (0, False)
    assert run.stderr.startswith(f"cannot release the tag {tag!r}: name it by the version")


def test_a_tag_is_refused_while_the_tree_is_unfinished(monkeypatch):
    """All of it at once, so that a maintainer has one list."""
    monkeypatch.setattr(public_names, "DOMAIN", "name.internal")
    monkeypatch.setattr(release, "UNFINISHED", {"LICENSE": "Apache", "README.md": "never said"})
    with pytest.raises(
        release.CannotReleaseError, match=r"LICENSE says 'Apache'\n.*`git grep -l name\.internal`"
    ) as no:
        release.check_tag(f"v{__version__}")
    assert "README" not in str(no.value)


def test_the_pages_still_say_what_a_maintainer_replaces():
    """Without a release: a page that is written anew needs its new words in the list."""
    assert len(release.unfinished()) in {0, len(release.UNFINISHED) + 1}


def test_a_pre_release_has_the_notes_of_its_version(monkeypatch):
    monkeypatch.setattr(release, "__version__", "1.2.0-rc.1")
    assert release.notes("# C\n\n## [1.2.0] - unreleased\n\n- New.\n", tag="v1.2.0-rc.1") == "- New.\n"


def test_a_tag_needs_its_section_in_the_changelog():
    unreleased = "# Changelog\n\n## [Unreleased]\n\n- New.\n\n## [0.0.1] - 2020-01-01\n\n- Old.\n"
    assert release.notes(unreleased, tag=None) == "- New.\n"
    with pytest.raises(release.CannotReleaseError, match=rf"\[{__version__}\] in CHANGELOG"):
        release.notes(unreleased, tag=f"v{__version__}")
    mine = unreleased.replace("0.0.1", __version__)
    assert release.notes(mine, tag=f"v{__version__}") == "- Old.\n"
    with pytest.raises(release.CannotReleaseError, match="calls it unreleased"):
        release.notes(mine.replace("2020-01-01", "unreleased"), tag=f"v{__version__}")


def test_the_checksums_name_every_file_but_their_own(tmp_path):
    (tmp_path / "b").write_bytes(b"b")
    (tmp_path / "a").write_bytes(b"a")
    for _ in range(2):
        release.write_sums(tmp_path)
    digests = [hashlib.sha256(name.encode()).hexdigest() for name in "ab"]
    assert (tmp_path / release.SUMS).read_text() == f"{digests[0]}  a\n{digests[1]}  b\n"


def test_the_page_verifies_all_that_the_workflow_signs_and_attests():
    workflow, page = ((release.ROOT / name).read_text() for name in (".github/workflows/release.yml", "RELEASE.md"))
    by = {
        "cosign sign --yes": "cosign verify --certificate",
        "cosign sign-blob": "cosign verify-blob",
        "push-to-registry: true": "gh attestation verify --repo OWNER/NAME oci://",
        "sbom-path:": "--predicate-type https://cyclonedx.org/bom oci://",
        "subject-checksums: release/SHA256SUMS": "gh attestation verify --repo OWNER/NAME autoclave-",
    }
    assert [command for step, command in by.items() if step not in workflow or command not in page] == []
