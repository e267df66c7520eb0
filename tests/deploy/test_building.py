"""`make image`: which program builds, with which base; and with the mark ``image``, the image that is built."""

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from deploy import base, image, leave_out
from scrubber import __version__
from scrubber.words import nvidia_advice

ROOT = Path(__file__).parents[2]
HOME = "https://project.invalid/autoclave"
PLANTED = "planted-in-the-configuration-of-pip"


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Makes programs that do nothing, and fail when they are called with one of some words. The path has no others."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def make(name: str, fails: tuple[str, ...] = ()) -> image.Builder:
        program = tmp_path / name
        program.write_text(f"#!{sys.executable}\nimport sys\nsys.exit(not set({fails!r}).isdisjoint(sys.argv))\n")
        program.chmod(0o755)
        return image.Builder(name)

    return make


def test_a_program_that_does_not_work_is_passed_over(stand_in):
    stand_in("buildah", fails=("info",))
    stand_in("docker")
    assert image.find_builder().name == "docker"


def test_without_a_builder_the_message_names_the_choices(stand_in):
    stand_in("docker", fails=("info",))
    with pytest.raises(image.CannotBuildError, match="buildah, podman, docker"):
        image.find_builder()
    stand_in("docker")
    with pytest.raises(image.CannotBuildError, match="here: buildah, podman; install one"):
        image.find_builder(image.KEEP_DIGESTS)


GIT = """#!/bin/sh
echo "fatal: detected dubious ownership in repository at '$PWD'" >&2
exit 128
"""


@pytest.mark.parametrize("checkout", [True, False])
def test_a_checkout_that_git_refuses_is_not_built(tmp_path, monkeypatch, checkout):
    """As root in another user's. Otherwise the image would be of 1980, name no commit, and have other bytes."""
    monkeypatch.setattr(image, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    epoch = image.epoch.__wrapped__  # it asks again
    if not checkout:
        assert epoch() == image.YEAR_1980
        return
    (tmp_path / ".git").mkdir()
    with pytest.raises(image.CannotBuildError, match="commit of this checkout: install git"):
        epoch()
    (tmp_path / "git").write_text(GIT)
    (tmp_path / "git").chmod(0o755)
    with pytest.raises(image.CannotBuildError, match=f"dubious ownership in repository at '{tmp_path}'"):
        epoch()


APT = """#!/bin/sh
case $* in *update*) exit 0 ;; esac
sed -n 's/^\\([^# ]*\\) \\([^ ]*\\)$/Inst \\1 (\\2 Debian:13)/p' LOCK
"""


@pytest.mark.parametrize("newer", [False, True], ids=["the lock's versions", "a newer version"])
def test_a_base_has_the_versions_of_its_lock(tmp_path, monkeypatch, newer):
    """Neither the archive nor its snapshot can give other ones: then nothing is installed."""
    lock, archive = tmp_path / "debian.lock", tmp_path / "what apt knows"
    lock.write_text("# Debian trixie at 20261127T000000Z,\npython3 3.13.5-1\nnetbase 6.5\n")
    archive.write_text(lock.read_text().replace("6.5", "6.6") if newer else lock.read_text())
    for name, script in {
        "apt-get": APT.replace("LOCK", f"'{archive}'"),
        "mmdebstrap": f"#!/bin/sh\necho $SOURCE_DATE_EPOCH > '{tmp_path}/made'\n",
    }.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(base, "LOCK", lock)
    refused = pytest.raises(base.NoBaseError, match="neither the archive nor the snapshot of 20261127T000000Z")
    with refused if newer else nullcontext():
        base.make(tmp_path / "base", to_build=False)
    assert (tmp_path / "made").exists() is not newer
    assert newer or (tmp_path / "made").read_text().strip() == "1795737600"


ASKED = """#!/bin/sh
for word; do case $word in *SourceList=*) list=${word#*SourceList=} ;; esac; done
case $* in *update*) exit 0 ;; esac
case $(cat "$list") in *snapshot*) sed 's/6.6/SNAPSHOT/' LOCK ;; *) cat LOCK ;; esac |
  sed 's/^\\(.*\\) \\(.*\\)$/Inst \\1 (\\2 D)/'
"""


@pytest.mark.parametrize("snapshot", ["6.5", "6.6"])
def test_a_lock_is_renewed_when_its_snapshot_has_its_versions(tmp_path, monkeypatch, snapshot):
    """Otherwise the base of that commit can never be made again."""
    archive, program = tmp_path / "archive", tmp_path / "apt-get"
    archive.write_text("python3 3.13.5-1\nnetbase 6.6\n")
    program.write_text(ASKED.replace("SNAPSHOT", snapshot).replace("LOCK", f"'{archive}'"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    refused = pytest.raises(base.NoBaseError, match="does not have these versions of amd64 yet: netbase; ")
    with refused if snapshot == "6.5" else nullcontext():
        assert "\nnetbase 6.6\n" in base.renewed()


@pytest.mark.parametrize(
    ("name", "kind", "wanted"),
    [
        ("docker", image.DOCKER, "save -o ARCHIVE an/image:1"),
        ("podman", image.DOCKER, "save -o ARCHIVE an/image:1"),
        ("podman", image.OCI, "save -o ARCHIVE --format=oci-archive an/image:1"),
        ("buildah", image.DOCKER, "push an/image:1 docker-archive:ARCHIVE:an/image:1"),
        ("buildah", image.OCI, "push an/image:1 oci-archive:ARCHIVE"),
    ],
)
def test_an_image_archive_is_always_rewritten(tmp_path, monkeypatch, name, kind, wanted):
    """The program writes its arguments into the archive that it is asked for. Buildah does not replace an archive."""
    archive, program = tmp_path / "image.tar", tmp_path / "bin" / name
    archive.write_text("of the last build")
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nset -C\necho "$@" > {archive}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    image.Builder(name).save("an/image:1", archive, kind)
    assert archive.read_text().strip() == wanted.replace("ARCHIVE", str(archive))


def test_the_image_has_the_tag_that_the_manifests_use():
    values = yaml.safe_load((ROOT / "deploy/helm/autoclave/values.yaml").read_text())["image"]
    assert image.name_of(image.CUDA).endswith("-cuda12")
    assert values["cuda"] == image.CUDA == next(iter(nvidia_advice.SINCE))


def test_configuration_of_packages_goes_in_as_secrets(tmp_path):
    own = tmp_path / ".config/pip/pip.conf"
    own.parent.mkdir(parents=True)
    own.touch()
    bundle = tmp_path / "bundle.pem"
    bundle.touch()
    found = image.secrets({"SSL_CERT_FILE": str(bundle), "UV_CONFIG_FILE": str(tmp_path / "none")}, tmp_path)
    assert {f"--secret=id=pip,src={own}", f"--secret=id=certificates,src={bundle}"} <= set(found)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The image of this tree, built with a planted word in pip's configuration: builder, name."""
    try:
        builder = image.find_builder()
    except image.CannotBuildError as error:
        pytest.skip(str(error))
    tag, planted = "localhost/autoclave:test", tmp_path_factory.mktemp("pip") / "pip.conf"
    with pytest.MonkeyPatch.context() as patch:
        given = os.environ.get("PIP_CONFIG_FILE", "/etc/pip.conf")
        text = Path(given).read_text() if Path(given).is_file() else "[global]\n"
        planted.write_text(f"{text}\n# {PLANTED}\n")
        patch.setenv("PIP_CONFIG_FILE", str(planted))
        image.build(builder, "none", tag, HOME)
    return builder, tag


@pytest.mark.image
class TestBuilt:
    pytestmark = pytest.mark.timeout(3600)

    def test_every_promise_of_the_demo_holds_without_root(self, built):
        builder, tag = built
        assert builder.run(tag, ["id", "-u"]).stdout.strip() == "65532"
        demo = ["env", "PYTHONPATH=/beside", "/opt/autoclave/bin/python", "-m", "demo", "--json"]
        run = builder.run(tag, demo, mounts={ROOT / "demo": "/beside/demo"})
        assert run.returncode == 0, run.stdout + run.stderr
        assert all(check["held"] for check in json.loads(run.stdout)["checks"])

    def test_no_trace_of_the_build_machine_is_in_the_image(self, built):
        builder, tag = built
        searched = ["bin", "etc", "home", "opt", "root", "run", "srv", "tmp", "usr", "var"]
        command = ["grep", "-rlF", PLANTED, *(f"/{name}" for name in searched)]
        assert builder.run(tag, command, user="0").stdout == ""
        debians = "cd /usr/share/ca-certificates && sort $(grep -v '^[#!]' /etc/ca-certificates.conf)"
        both = [
            builder.run(tag, ["sh", "-c", it]).stdout for it in (debians, "sort /etc/ssl/certs/ca-certificates.crt")
        ]
        assert both[0] == both[1] != ""
        assert builder.run(tag, ["ls", "/etc/pip.conf", "/etc/uv", "/opt/autoclave/.lock"]).stdout == ""

    def test_no_file_of_the_image_gives_rights(self, built):
        """None runs as another user, and everybody may write only what every Debian lets them."""
        builder, tag = built
        what = ["-type", "f", "(", "-perm", "/6000", "-o", "-perm", "/002", ")"]
        assert builder.run(tag, ["find", "/bin", "/etc", "/opt", "/usr", "/var", "-xdev", *what], user="0").stdout == ""

    def test_the_bill_of_materials_names_the_packages_of_both_locks(self, built):
        """The image has no others, and no pip."""
        builder, tag = built
        bill = json.loads(builder.run(tag, ["cat", "/usr/share/doc/autoclave/sbom.cdx.json"]).stdout)
        debian = {it["name"]: it["version"] for it in bill["components"] if it["purl"].startswith("pkg:deb/")}
        assert debian == base.locked(base.LOCK.read_text(), base.mine(), to_build=False)
        assert "grpcio" in {it["name"] for it in bill["components"]}
        assert bill["metadata"]["component"]["version"] == __version__
        assert builder.run(tag, ["python3", "-m", "pip", "--version"]).returncode != 0

    def test_the_same_commit_gives_the_same_image(self, built):
        builder, tag = built
        if builder.name == "docker":
            pytest.skip("docker gives each file the time at which it was written")
        image.build(builder, "none", again := f"{tag}-again", HOME)
        assert builder.id(again) == builder.id(tag)

    def test_a_start_compiles_no_python(self, built):
        """The running image is read-only: what the base did not compile would be compiled at each start."""
        builder, tag = built
        uncompiled = (
            f"{leave_out.IMPORT_ALL}\nimport os, sys\n"
            "files = [m.__spec__.cached for m in sys.modules.values() if getattr(m, '__spec__', None)]\n"
            "print([file for file in files if file and not os.path.exists(file)])"
        )
        run = builder.run(tag, ["/opt/autoclave/bin/python", "-c", uncompiled])
        assert run.stdout == "[]\n", run.stderr

    def test_no_compiled_python_names_a_time(self, built):
        """In each, a word of flags follows the version: 1 for no time, and no look at the source."""
        builder, tag = built
        timed = (
            "from pathlib import Path\nfiles = [p for r in ('/usr/lib', '/opt') for p in Path(r).rglob('*.pyc')]\n"
            "print(len(files) > 999, [str(p) for p in files if p.read_bytes()[4:8] != b'\\1\\0\\0\\0'])"
        )
        run = builder.run(tag, ["/opt/autoclave/bin/python", "-c", timed])
        assert run.stdout == "True []\n", run.stderr
