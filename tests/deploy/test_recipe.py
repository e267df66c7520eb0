"""Every page installs and changes Autoclave by one recipe: the namespace with its label, an image of your own."""

import json
import os
import re
import subprocess

import pytest
import yaml

from autoclave.cli.verbs import cdi
from deploy import generate, image
from scrubber import __version__
from scrubber.devices.simulated import layout
from tests.deploy import manifests
from tests.house.sources import FENCED, PAGES, place

COMMAND = re.compile(r"^ *(helm (?:install|upgrade) .*)$|`(helm (?:install|upgrade) [^`]+)`", re.MULTILINE)
OURS = "autoclave deploy/helm/autoclave --namespace autoclave"
SPACE = "kubectl apply -f deploy/kustomize/base/namespace.yaml\n"
OWN_IMAGE = re.compile(r"--set image\.repository=(\$REGISTRY|localhost)/autoclave\b")
INSTALL, KUSTOMIZE, DRA = (generate.ROOT / f"docs/{page}.md" for page in ("install", "kustomize", "dra"))
OBSERVES = "GPUs are handed out without a proof"
HOLDS = "pods cannot open a GPU that they were not given"


def joined(text):
    """A page with each command on one line, and without the indentation of its blocks."""
    return re.sub(r"^ +", "", text.replace("\\\n", " "), flags=re.MULTILINE)


def commands():
    """Each command of helm on a page: the page, the command, and the page's blocks of code."""
    for page in PAGES:
        text = page.read_text()
        blocks = "".join(found[0] for found in FENCED.finditer(text))
        for found in COMMAND.finditer(joined(text)):
            yield place(page), found[1] or found[2], joined(blocks)


def fault(command, blocks):
    """What the recipe has and this command has not."""
    _, verb, release, *_ = command.split()
    if verb == "upgrade":
        return "" if "--reset-then-reuse-values" in command else "--reset-then-reuse-values"
    if release.startswith("-"):
        return ""  # a single flag, not the whole command
    before = blocks.partition(command)[0]
    parts = {
        OURS: OURS in command,
        "repository": OWN_IMAGE.search(command),
        SPACE: SPACE in before,
    }
    return ", ".join(name.strip() for name, there in parts.items() if not there)


def test_each_page_installs_by_the_one_recipe():
    found = list(commands())
    assert {"docs/install.md", "docs/dra.md", "docs/tutorial.md"} <= {page for page, *_ in found}
    assert [f"{page}: {command}: {wrong}" for page, command, blocks in found if (wrong := fault(command, blocks))] == []
    assert [
        place(page) for page in PAGES if re.search(r"--create-namespace|(?<!then)-reuse-values", page.read_text())
    ] == []


def test_five_commands_lead_to_pods_that_wait_apart():
    """For each of the three ways, behind the same two: look at first, move the other one, then scrub and hold."""
    part = INSTALL.read_text().partition("## The installation that we recommend\n")[2].partition("\n### ")[0]
    claims = DRA.read_text().partition("### NVIDIA's chart\n")[2].partition("\n### ")[0]
    first, *ways, last = (joined(found[0]).splitlines()[1:-1] for found in FENCED.finditer(part))
    ways += [joined(found[0]).splitlines()[1:-1] for found in FENCED.finditer(claims)]
    assert [line.partition(" ")[0] for line in first] == ["REGISTRY=registry.example/team", "docker", "kubectl"]
    assert len(ways) == 3
    for lines in ways:
        install, move = (line for line in lines if line.startswith(("helm ", "kubectl ")))
        values = set_by(install, {})
        plugin, dra = (values.get(name, {}).get("inFrontOf", {}) for name in ("plugin", "dra"))
        assert f"{plugin.get('directory', dra.get('registrarDirectory'))}" in "".join(lines[lines.index(move) :])
        assert OBSERVES in manifests.notes(values)
        assert HOLDS in manifests.notes(set_by("".join(last), values), upgrade=True)


def set_by(command, values):
    """The values, and what the flags of a command of helm set."""
    made = json.loads(json.dumps(values))
    command = command.replace("$REGISTRY", "registry.example").replace("{NAMESPACE}", "[nvidia]")
    for name, value in re.findall(r"--set(?:-json)? '?([\w.]+)=([^' ]*)", command):
        *path, last = name.split(".")
        inner = made
        for key in path:
            inner = inner.setdefault(key, {})
        inner[last] = yaml.safe_load(value)
    return made


def test_the_manifests_of_kustomize_name_an_image_that_cannot_exist():
    """A name below ``invalid`` is never registered (RFC 2606)."""
    for name in ("base", *(f"overlays/{name}" for name in generate.OVERLAYS)):
        found = {one["image"] for *_, one in manifests.containers(tuple(manifests.composed(generate.KUSTOMIZE / name)))}
        assert {it.partition(":")[0] for it in found} == {"name-your-registry.invalid/autoclave"}


@pytest.mark.skipif(not manifests.KUSTOMIZE, reason="there is no kustomize here")
def test_the_recipe_for_kustomize_names_an_image_of_your_own(tmp_path):
    [block] = re.findall(r"```\n(.*?)```", KUSTOMIZE.read_text(), re.DOTALL)
    (tmp_path / "deploy").symlink_to(generate.ROOT / "deploy")
    render = " ".join(manifests.KUSTOMIZE)
    script = block.replace("kubectl apply -k", render)
    run = subprocess.run(
        ["sh", "-e"], input=script, cwd=tmp_path, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = {one["image"] for *_, one in manifests.containers(tuple(manifests.documents(run.stdout)))}
    assert found == {f"registry.example/team/autoclave:{__version__}-{image.CUDA}"}


def test_the_overlay_in_front_begins_with_observe_until_the_patch():
    """Any other policy scrubs GPUs that the other plugin still hands out."""
    page = (generate.ROOT / "docs/in-front.md").read_text()
    [block] = re.findall(r"```yaml\n(patches:.*?)```", page, re.DOTALL)
    [[patch]] = [doc["patches"] for doc in manifests.documents(block)]
    objects = manifests.composed(generate.KUSTOMIZE / "overlays/in-front")
    [scrubber] = [doc for doc in objects if (doc["kind"], doc["metadata"]["name"]) == tuple(patch["target"].values())]
    [operations] = manifests.documents(patch["patch"])
    for doc, policy in ((scrubber, "observe"), (manifests.patched(scrubber, operations), "default")):
        [container] = doc["spec"]["template"]["spec"]["containers"]
        assert [arg for arg in container["args"] if arg.startswith("--policy")] == [f"--policy={policy}"]


@pytest.mark.parametrize("name", [layout.CDI_NAME, cdi.NAME])
def test_the_page_names_each_specification_that_an_uninstall_leaves(name):
    """A pod from before cannot start again without some of them."""
    assert f"{name}`" in INSTALL.read_text().partition("\n## Uninstall\n")[2]
