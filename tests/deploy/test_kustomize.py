"""Kustomize's base and overlays are the chart, rendered, and nothing else."""

import copy
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy import generate
from tests.deploy import manifests

OVERLAYS = generate.KUSTOMIZE / "overlays"
PROGRAMS = (("kustomize", "build"), ("kubectl", "kustomize"))  # the same; neither is needed to build this


def documents(path):
    return manifests.documents(path.read_text())


def patched(doc, patch):
    """A JSON patch (RFC 6902), of the operations that ours are made of."""
    made = copy.deepcopy(doc)
    for each in patch:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in each["path"].split("/")[1:]]
        inner = made
        for part in way:
            inner = inner[int(part)] if isinstance(inner, list) else inner[part]
        place = int(last) if isinstance(inner, list) else last
        assert isinstance(inner, list) or (last in inner) == (each["op"] != "add")
        if each["op"] == "remove":
            del inner[place]
        else:
            inner[place] = each["value"]
    return made


def composed(folder: Path):
    """What kustomize makes of an overlay, or of the base."""
    (about,) = documents(folder / "kustomization.yaml")
    files = [folder / name for name in about["resources"]]
    found = {generate.key(doc): doc for path in files for doc in (composed(path) if path.is_dir() else documents(path))}
    for patch in about.get("patches", ()):
        ((key, doc),) = (
            (key, doc) for key, doc in found.items() if (key[0], key[2]) == tuple(patch["target"].values())
        )
        (operations,) = documents(folder / patch["path"])
        found[key] = patched(doc, operations)
    return list(found.values())


def by_key(docs):
    return {generate.key(doc): doc for doc in docs}


def rendered(values):
    docs = [doc for docs in generate.objects(values).values() for doc in docs]
    return by_key(json.loads(json.dumps(docs)))  # without comments and styles


@pytest.mark.parametrize("name", generate.OVERLAYS)
def test_an_overlay_is_the_chart_with_its_values_and_the_namespace(name):
    made = by_key(composed(OVERLAYS / name))
    space = made.pop(("Namespace", "", "autoclave"))
    assert space["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "privileged"}
    assert made == rendered(generate.OVERLAYS[name])
    for doc in made.values():
        assert manifests.check(doc) == []


def test_kustomize_itself_makes_the_same(monkeypatch, tmp_path):
    program = next((it for it in PROGRAMS if shutil.which(it[0])), None)
    if program is None:
        pytest.skip("there is no kustomize here")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in generate.OVERLAYS:
        run = subprocess.run([*program, OVERLAYS / name], capture_output=True, text=True, check=True)
        assert by_key(manifests.documents(run.stdout)) == by_key(composed(OVERLAYS / name))


def args(name):
    """Of the scrubber."""
    found = by_key(composed(OVERLAYS / name))[("DaemonSet", "autoclave", "autoclave-scrubber")]
    return found["spec"]["template"]["spec"]["containers"][0]["args"]


def test_the_overlays_say_what_they_are_called_for():
    assert {"--backend=nvidia", "--policy=default"} <= set(args("nvidia"))
    assert {"--backend=nvidia", "--policy=observe"} <= set(args("observe-only"))
    assert "--backend=simulated" in args("simulated")
