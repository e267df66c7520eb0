"""What in here is made of something else: ``python -m deploy.generate`` (``make deploy``).

The table of values in the chart's README, the names of findings in the schema of the values, and all of kustomize,
which is the chart rendered: the base as it is, and each overlay as the difference between the base and the chart with
other values. Dashboards and alerts are links in the chart, which Helm follows.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import helm_python
from ruamel.yaml import YAML

from autoclave.doctor.findings import all_checks

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy/helm/autoclave"
KUSTOMIZE = ROOT / "deploy/kustomize"
README, SCHEMA = "README.md", "values.schema.json"
NAME = NAMESPACE = "autoclave"
# The image in the manifests of kustomize, which an overlay of the user replaces. No registry has a name below invalid.
IMAGE = {"repository": "name-your-registry.invalid/autoclave"}

BASE: dict[str, Any] = {"runtimeClass": {"name": ""}, "gpuNodesOnly": False}
OVERLAYS: dict[str, dict[str, Any]] = {
    "nvidia": {},
    "observe-only": {"policy": {"shipped": "observe"}},
    "in-front": {
        "plugin": {"inFrontOf": {"directory": "/var/lib/kubelet/device-plugins/vendor"}},
        "policy": {"shipped": "observe"},
    },
    "simulated": {"backend": "simulated"},
    "dra": {"dra": {"enabled": True}},
    "dra-simulated": {"dra": {"enabled": True}, "backend": "simulated"},
}
HELMS_OWN = ("helm.sh/chart", "app.kubernetes.io/managed-by")
MORE = "more.yaml"  # of an overlay: the objects that the base does not have
HEAD = "# Made by `make deploy` of the chart in deploy/helm/autoclave; change that, not this.\n"
PRIVILEGED = {"pod-security.kubernetes.io/enforce": "privileged"}  # directories of the node are mounted

_COMMENT = re.compile(r"( *)# -- (.*)")
_KEY = re.compile(r"( *)([A-Za-z]+):")
_FINDINGS = re.compile(r'("findings": \{[^]]*"enum": \[\n)[^]]*(\n        \])')
_TABLE = re.compile(r"(<!-- values: begin -->\n).*(<!-- values: end -->)", re.DOTALL)

Object = dict[str, Any]
Key = tuple[str, str, str]


def yaml() -> YAML:
    """The style in which all generated YAML is written."""
    made = YAML()
    made.width = 4096
    made.indent(mapping=2, sequence=4, offset=2)
    return made


@cache
def chart() -> helm_python.Chart:
    """The chart, read once; from a copy without links, because Helm logs a line for each of them."""
    with TemporaryDirectory() as directory:
        return helm_python.Chart.load(shutil.copytree(CHART, Path(directory, CHART.name)))


def render(values: Mapping[str, Any]) -> dict[str, str]:
    """What comes of each template that makes objects, as text."""
    texts = chart().render(dict(values), name=NAME, namespace=NAMESPACE)
    found = {Path(path).relative_to("autoclave/templates"): text for path, text in texts.items()}
    return {str(path): text for path, text in sorted(found.items()) if path.suffix == ".yaml" and text.strip()}


def objects(values: Mapping[str, Any]) -> dict[str, list[Object]]:
    """All objects by the name of their template, without what is Helm's own: hooks, two labels."""
    texts = {path: text for path, text in render({"image": IMAGE, **values}).items() if not path.startswith("tests/")}
    made = {path: [doc for doc in yaml().load_all(text) if doc] for path, text in texts.items()}
    for doc in (doc for docs in made.values() for doc in docs):
        for label in HELMS_OWN:
            doc["metadata"]["labels"].pop(label, None)
    return {path: docs for path, docs in made.items() if docs}


def key(doc: Object) -> Key:
    """What tells objects apart."""
    about = doc["metadata"]
    return doc["kind"], about.get("namespace", ""), about["name"]


def difference(old: Any, new: Any, place: str = "") -> Iterator[Object]:  # noqa: ANN401 - any part of a manifest
    """The JSON patch from one to the other. A list that became longer or shorter is taken whole."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from difference(before, after, f"{place}/{number}")
        return
    if not isinstance(old, dict) or not isinstance(new, dict):
        if old != new:
            yield {"op": "replace", "path": place, "value": new}
        return
    for name in [*old, *(name for name in new if name not in old)]:
        inner = f"{place}/{name.replace('~', '~0').replace('/', '~1')}"
        if name not in new:
            yield {"op": "remove", "path": inner}
        elif name not in old:
            yield {"op": "add", "path": inner, "value": new[name]}
        else:
            yield from difference(old[name], new[name], inner)


def kustomize() -> Iterator[tuple[str, str]]:
    """Every file under deploy/kustomize."""
    base = objects(BASE)
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": PRIVILEGED}}
    files = {"namespace.yaml": [space], **base}
    yield from (((f"base/{name}", _text(docs)) for name, docs in files.items()))
    yield "base/kustomization.yaml", _text([_kustomization(resources=sorted(files))])
    for name, values in OVERLAYS.items():
        yield from ((f"overlays/{name}/{path}", text) for path, text in _overlay(base, objects(values)))


def _overlay(old: dict[str, list[Object]], new: dict[str, list[Object]]) -> Iterator[tuple[str, str]]:
    """The files of an overlay: objects that the base does not have, and the patches that change and remove others."""
    before, after = ({key(doc): doc for docs in made.values() for doc in docs} for made in (old, new))
    resources, patches = ["../../base"], list[Object]()
    if more := [doc for name, doc in after.items() if name not in before]:
        resources.append(MORE)
        yield MORE, _text(more)
    for it, doc in before.items():
        if it not in after:
            about = {field: doc["metadata"][field] for field in ("name", "namespace") if field in doc["metadata"]}
            gone = {"$patch": "delete", "apiVersion": doc["apiVersion"], "kind": doc["kind"], "metadata": about}
            patches.append({"patch": json.dumps(gone)})
        elif patch := list(difference(_plain(doc), _plain(after[it]))):
            path = f"{it[0].lower()}-{it[2]}.yaml"
            patches.append({"target": {"kind": it[0], "name": it[2]}, "path": path})
            yield path, _text([patch])
    yield "kustomization.yaml", _text([_kustomization(resources=resources, patches=patches)])


def _kustomization(**fields: object) -> Object:
    return {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", **fields}


def _plain(value: Any) -> Any:  # noqa: ANN401 - any part of a manifest
    """Without comments and styles."""
    return json.loads(json.dumps(value))


def _text(docs: list[Any]) -> str:
    out = StringIO()
    yaml().dump_all(docs, out)
    return HEAD + out.getvalue()


def values() -> Iterator[tuple[str, object, str]]:
    """Each value that has a comment: its name, its default, the comment."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    defaults = YAML(typ="safe", pure=True).load(text)
    names: list[str] = []
    comment = ""
    for line in text.splitlines():
        if found := _COMMENT.fullmatch(line):
            comment = found[2]
        elif found := _KEY.match(line):
            names = [*names[: len(found[1]) // 2], found[2]]
            if comment:
                yield ".".join(names), _at(defaults, names), comment
            comment = ""


def _at(tree: Any, names: list[str]) -> Any:  # noqa: ANN401 - any value
    for name in names:
        tree = tree[name]
    return tree


def readme() -> str:
    """The chart's README with its table of values."""
    rows = "".join(f"| `{name}` | `{json.dumps(default)}` | {text} |\n" for name, default, text in values())
    table = f"| value | default | |\n|---|---|---|\n{rows}"
    text = (CHART / README).read_text(encoding="utf-8")
    return _TABLE.sub(lambda found: f"{found[1]}{table}{found[2]}", text)


def schema() -> str:
    """The schema of the values, with the findings that the doctor has."""
    names = ",\n".join(f'          "{name}"' for name in all_checks.NAMES)
    text = (CHART / SCHEMA).read_text(encoding="utf-8")
    return _FINDINGS.sub(lambda found: f"{found[1]}{names}{found[2]}", text)


def everything() -> dict[Path, bytes]:
    """All files that are made."""
    ours = {CHART / README: readme().encode(), CHART / SCHEMA: schema().encode()}
    return ours | {KUSTOMIZE / path: text.encode() for path, text in kustomize()}


def write() -> None:
    """Write them all, and take away what is no longer made."""
    made = everything()
    for path in [path for path in KUSTOMIZE.rglob("*") if path.is_file() and path not in made]:
        path.unlink()
    for path, content in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    write()
