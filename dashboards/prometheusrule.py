"""The rules and alerts as the manifest that the Prometheus operator reads, made of the same two files.

``python -m dashboards.prometheusrule > dashboards/kubernetes/prometheusrule.yaml``
"""

from __future__ import annotations

import sys
from importlib import resources
from io import StringIO

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString

SOURCES = ("rules.yaml", "alerts.yaml")
WIDTH = 4096  # an address or a sentence stays on its line
HEAD = "# Made by `make docs` of dashboards/rules.yaml and dashboards/alerts.yaml; change those, not this.\n"
LABELS = {"app.kubernetes.io/name": "autoclave", "app.kubernetes.io/part-of": "autoclave"}


def render() -> str:
    """The manifest. Which rules an operator reads is its ``ruleSelector``: add the labels that yours asks for."""
    manifest = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "autoclave", "labels": LABELS},
        "spec": {"groups": [_readable(group) for name in SOURCES for group in _groups(name)]},
    }
    yaml = YAML()
    yaml.width = WIDTH
    yaml.indent(mapping=2, sequence=4, offset=2)
    out = StringIO()
    yaml.dump(manifest, out)
    return HEAD + out.getvalue()


def _groups(name: str) -> list[dict[str, object]]:
    text = (resources.files("dashboards") / name).read_text(encoding="utf-8")
    groups: list[dict[str, object]] = YAML(typ="safe", pure=True).load(text)["groups"]
    return groups


def _readable(value: object) -> object:
    """Expressions of several lines keep them."""
    match value:
        case dict():
            return {key: _readable(inner) for key, inner in value.items()}
        case list():
            return [_readable(inner) for inner in value]
        case str() if "\n" in value:
            return LiteralScalarString(value)
    return value


if __name__ == "__main__":
    sys.stdout.write(render())
