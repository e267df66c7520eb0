"""Kustomize's base and overlays are the chart, rendered, and nothing else."""

import json
import subprocess

import pytest

from deploy import generate
from tests.deploy import manifests

OVERLAYS = generate.KUSTOMIZE / "overlays"


def by_key(docs):
    return {generate.key(doc): doc for doc in docs}


def rendered(values):
    docs = [doc for docs in generate.objects(values).values() for doc in docs]
    return by_key(json.loads(json.dumps(docs)))  # without comments and styles


@pytest.mark.parametrize("name", generate.OVERLAYS)
def test_an_overlay_equals_the_chart_with_its_values(name):
    made = by_key(manifests.composed(OVERLAYS / name))
    space = made.pop(("Namespace", "", "autoclave"))
    assert space["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "privileged"}
    assert made == rendered(generate.OVERLAYS[name])
    for doc in made.values():
        assert manifests.check(doc) == []


@pytest.mark.skipif(not manifests.KUSTOMIZE, reason="there is no kustomize here")
def test_kustomize_itself_makes_the_same(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in generate.OVERLAYS:
        run = subprocess.run([*manifests.KUSTOMIZE, OVERLAYS / name], capture_output=True, text=True, check=True)
        assert by_key(manifests.documents(run.stdout)) == by_key(manifests.composed(OVERLAYS / name))


def args(name):
    """Of the scrubber."""
    found = by_key(manifests.composed(OVERLAYS / name))[("DaemonSet", "autoclave", "autoclave-scrubber")]
    return found["spec"]["template"]["spec"]["containers"][0]["args"]


def test_the_overlays_say_what_they_are_called_for():
    assert {"--backend=nvidia", "--policy=default"} <= set(args("nvidia"))
    assert {"--backend=nvidia", "--policy=observe"} <= set(args("observe-only"))
    assert "--backend=simulated" in args("simulated")
    for name in generate.OVERLAYS:
        sets = {doc["metadata"]["name"] for doc in manifests.composed(OVERLAYS / name) if doc["kind"] == "DaemonSet"}
        assert sets == {"autoclave-scrubber", "autoclave-dra" if name.startswith("dra") else "autoclave-plugin"}
