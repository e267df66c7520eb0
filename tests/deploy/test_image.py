"""The image without a build: its recipe, its locks, and its packages in an empty place. test_building.py builds it."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy import base, debian_packages, leave_out, own_parts
from tests.cli import on_machine
from tests.cli.on_machine import FLAGS, POLICY, OnMachine, needs_namespace, staged
from tests.fakes.cuda.fixtures import libraries
from tests.fakes.cuda.machine import PAGE, equip
from tests.gpu.rehearsing import environment
from tests.patience import WITHIN

library = on_machine.library  # a fixture

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "deploy" / "Dockerfile"
LOCKS = {path.stem: path for path in (ROOT / "deploy" / "requirements").glob("*.lock")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ALWAYS = ("cluster", "receipts")
EXTRAS = {"none": ALWAYS, "cuda12": (*ALWAYS, "cuda12"), "cuda13": (*ALWAYS, "cuda13")}
CUDA = {"cupy-cuda12x", "cupy-cuda13x", "numpy", "cuda-pathfinder"}


def text_of(lock):
    """A lock with the lock that its first line names."""
    first, _, rest = lock.read_text().partition("\n")
    return text_of(lock.with_name(first.removeprefix("-r "))) + rest if first.startswith("-r ") else lock.read_text()


def pins(path):
    """What a lock says for this machine: names and versions."""
    lines = re.sub(r"\\\n.*", "", text_of(path)).splitlines()
    wanted = [Requirement(line.split(" --hash")[0]) for line in lines if line and not line.startswith((" ", "#"))]
    mine = [it for it in wanted if it.marker is None or it.marker.evaluate()]
    return {canonicalize_name(it.name): str(it.specifier).removeprefix("==") for it in mine}


def instructions():
    """The recipe as (word, rest), lines that go on joined."""
    text = re.sub(r"^#.*\n", "", RECIPE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def stages():
    found: dict[str, list[tuple[str, str]]] = {}
    for word, rest in instructions():
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = [("FROM", base)]
        elif found:
            list(found.values())[-1].append((word, rest))
    return found


def test_the_linter_accepts_the_recipe():
    hadolint = Path(sys.executable).parent / "hadolint"
    if not hadolint.exists():
        pytest.skip("hadolint has no wheel for this machine")
    run = subprocess.run([hadolint, RECIPE], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout + run.stderr) == (0, "")


def test_the_final_stage_only_copies_and_is_unprivileged():
    found = stages()
    last = list(found)[-1]
    assert [word for word, _ in instructions() if word in {"HEALTHCHECK", "ADD"}] == []
    begins = {name: rest for name, ((_, rest), *_) in found.items()}
    assert (begins["build"], begins["base-to-build"], begins[last], begins["base"]) == (
        "base-to-build",
        "scratch",
        "base",
        "scratch",
    )
    shipped = dict(found[last])
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", shipped["USER"])
    assert json.loads(shipped["ENTRYPOINT"]) == [next(iter(PROJECT["scripts"]))]
    copies = [rest for word, rest in found[last] if word == "COPY"]
    assert all(rest.startswith(("--from=build ", "--from=sbom ")) for rest in copies)
    labels = set(re.findall(r"org\.opencontainers\.image\.([\w.]+)=", shipped["LABEL"]))
    assert labels == {"title", "description", "licenses", "version", "revision", "created"}
    assert not [rest for word, rest in found[last] if word == "RUN" and "install" in rest.replace("uninstall", "")]


def test_bases_and_tools_are_pinned():
    defaults = dict(rest.split("=", 1) for word, rest in instructions() if word == "ARG" and "=" in rest)
    assert re.fullmatch(r"docker\.io/library/debian@sha256:[0-9a-f]{64}", defaults["DEBIAN"])
    assert defaults["MIRROR"] == base.ARCHIVE
    for architecture in base.ARCHITECTURES:
        shipped, build = (base.locked(base.LOCK.read_text(), architecture, to_build=each) for each in (False, True))
        assert set(base.NEEDED) < set(shipped)
        assert build.keys() - shipped.keys() > {base.TO_BUILD}
        minor = ".".join(shipped["python3"].split(".")[:2])
        assert f"Programming Language :: Python :: {minor}" in PROJECT["classifiers"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", defaults["CYCLONEDX"])
    tools = (ROOT / "deploy/tools.lock").read_text()
    assert re.findall(r"^(\w+)==\d.* \\\n    --hash=sha256:", tools, re.MULTILINE) == ["uv"]
    assert not [rest for word, rest in instructions() if word == "RUN" and "pip install" in rest and "==" in rest]
    assert {rest for word, rest in instructions() if word == "ARG" and rest.startswith("CUDA")} == {"CUDA=cuda12"}


def test_copied_files_exist_and_are_not_ignored():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    let_in = {line[1:] for line in ignored if line.startswith("!")}
    assert "*" in ignored
    copied = {
        word for name, rest in instructions() if name == "COPY" and "--from" not in rest for word in rest.split()[:-1]
    }
    assert copied == let_in
    assert [path for path in copied if not (ROOT / path).exists()] == []
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(wheel["packages"]) | {PROJECT["readme"], *PROJECT["license-files"]} <= copied


def test_the_bill_of_materials_names_installed_debian_packages(tmp_path, monkeypatch):
    status = """Package: libstdc++6
Status: install ok installed
Architecture: amd64
Source: gcc-12 (12.2.0-14)
Version: 1:12.2.0-14+b1
Description: a library
 with more: words

Package: removed
Status: deinstall ok config-files
Architecture: all
Version: 1
"""
    (tmp_path / "status").write_text(status)
    (tmp_path / "release").write_text('ID=debian\nVERSION_ID="12"\n')
    monkeypatch.setattr(debian_packages, "STATUS", tmp_path / "status")
    monkeypatch.setattr(debian_packages, "RELEASE", tmp_path / "release")
    bill = tmp_path / "sbom.cdx.json"
    bill.write_text('{"components": [{"name": "grpcio"}]}')
    debian_packages.main(bill)
    [kept, added] = json.loads(bill.read_text())["components"]
    assert (kept["name"], added["name"], added["version"]) == ("grpcio", "libstdc++6", "1:12.2.0-14+b1")
    assert added["purl"] == (
        "pkg:deb/debian/libstdc%2B%2B6@1%3A12.2.0-14%2Bb1?arch=amd64&distro=debian-12&upstream=gcc-12%4012.2.0-14"
    )
    (tmp_path / "status").write_text("")
    with pytest.raises(SystemExit, match="names none"):
        debian_packages.main(bill)


def test_the_bill_of_materials_names_our_version(tmp_path):
    (bill := tmp_path / "sbom.cdx.json").write_text('{"components": [], "metadata": {"component": {}}}')
    own_parts.main(bill)
    assert json.loads(bill.read_text())["metadata"]["component"]["version"] == metadata.version("autoclave")


@pytest.mark.parametrize("variant", EXTRAS)
def test_a_lock_has_every_requirement_with_hashes(variant):
    assert set(LOCKS) == set(EXTRAS)
    found, text = pins(LOCKS[variant]), text_of(LOCKS[variant])
    asked = PROJECT["dependencies"] + [
        it for extra in EXTRAS[variant] for it in PROJECT["optional-dependencies"][extra]
    ]
    for requirement in map(Requirement, asked):
        assert requirement.specifier.contains(found[canonicalize_name(requirement.name)]), requirement
    entries = re.split(r"^(?=\w)", text, flags=re.MULTILINE)
    assert [entry for entry in entries if entry and "--hash=sha256:" not in entry] == []
    assert "://" not in text
    assert (set(found) & CUDA == set()) is (variant == "none")
    assert [name for name in found if name.startswith("nvidia-") and name != "nvidia-ml-py"] == []


def test_the_image_holds_the_releases_that_were_tested():
    tested = pins(ROOT / "requirements.lock").items()
    shipped = {pin for path in LOCKS.values() for pin in pins(path).items()}
    assert {name for name, _ in shipped - tested} == {"cupy-cuda12x"}


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """An environment of the locked packages and the wheel of this tree, without what the image leaves out.

    The tests have the CuPy of ``cuda13``; the one of ``cuda12`` has the same files.
    """
    place = tmp_path_factory.mktemp("image")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "opt"], check=True)
    (packages,) = (place / "opt" / "lib").glob("python*/site-packages")
    for name, version in pins(LOCKS["cuda13"]).items():
        distribution = metadata.distribution(name)
        assert distribution.version == version, f"{name}: the environment of the tests is not the locked one"
        for file in distribution.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file.locate(), packages / file)
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", place]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    install = [
        "-m",
        "pip",
        "--python",
        place / "opt",
        "install",
        "-qq",
        "--no-deps",
        "--no-index",
        *place.glob("*.whl"),
    ]
    subprocess.run([sys.executable, *install], capture_output=True, check=True)
    leave_out.main(place / "opt")
    return place / "opt"


def test_an_omission_that_matches_nothing_ends_the_build(tmp_path):
    with pytest.raises(SystemExit, match=r"cannot leave out pygments/lexers/\*\.py: .* has no such file"):
        leave_out.leave_out(tmp_path)


@contextmanager
def begun(command, hear, words, **where):
    """A program that has said these words; it ends with the block, whatever happens in there."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, hear: subprocess.PIPE}
    process = subprocess.Popen(command, text=True, **pipes, **where)
    try:
        assert any(words in line for line in getattr(process, hear)), f"{command[0]} has ended"
        yield process
        process.terminate()
        process.communicate(timeout=WITHIN)
    finally:
        process.kill()
        process.communicate()


def test_both_programs_need_only_the_packages_of_the_lock(prefix, short_tmp):
    program, kubelet = prefix / "bin" / "autoclave", short_tmp / "kubelet"
    kubelet.mkdir()
    where = {"env": {"PATH": os.defpath, "AUTOCLAVE_RUN_DIR": str(short_tmp / "run")}, "cwd": short_tmp}
    scrubber = [program, "scrubber", "--backend", "simulated", "--simulated-memory", "1MiB", "--kubelet-dir", kubelet]
    stand_in = [sys.executable, "-m", "demo.standins", "--directory", kubelet]
    with ExitStack() as stack:
        serving = [*scrubber, "--state-dir", short_tmp / "state"]
        service = stack.enter_context(begun(serving, "stderr", '"event": "serving"', **where))
        stack.enter_context(begun(stand_in, "stdout", "serving", **where))
        plugin = stack.enter_context(
            begun([program, "plugin", "--kubelet-dir", kubelet], "stderr", "registered", **where)
        )
    assert (service.returncode, plugin.returncode) == (0, 0)
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, **where)
    assert version.stdout == f"autoclave {metadata.version('autoclave')}\n"


@needs_namespace
def test_a_scrub_needs_of_cupy_only_what_the_image_holds(prefix, library, short_tmp):
    """From the start of the service to the receipt, with all steps, and `remnant`, on the stand-ins of the driver."""
    stage = staged(short_tmp, library, 1)
    cuda = equip(short_tmp / "cuda", stage.machine.gpus, libraries())
    program = (prefix / "bin" / "autoclave",)
    service = type("Shipped", (OnMachine,), {"program": program})(
        short_tmp, stage, POLICY, cuda.environment(library.parent)
    )
    try:
        variables = os.environ | {"AUTOCLAVE_RUN_DIR": str(service.run_dir)}
        scrub = [*program, "scrub", "0", "--path", "slow"]
        run = subprocess.run(scrub, env=variables, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        passed = [json.loads(entry.body) for entry in service.entries(0) if entry.kind == "scrub-passed"]
        assert {"clear", "verify", "scratch", "selftest"} <= {step for step, _ in passed[-1]["receipt"]["steps"]}
    finally:
        service.stop()
    asked = ("--gpu", "0", "--to", short_tmp / "remnant", "--host-root", stage.root.path)
    chosen = ("--medium", "memory", "--rounds", "1", "--ending", "kill")
    env = environment(stage, cuda.environment(library.parent))
    command = ["unshare", *FLAGS, *program, "remnant", "run", *asked, *chosen]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (short_tmp / "remnant/result.json").exists(), run.stderr
    [cell] = json.loads((short_tmp / "remnant/result.json").read_text())["cells"]
    assert cell["searched"] > PAGE
