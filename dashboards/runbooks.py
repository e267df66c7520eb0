"""The commands of each runbook page, on the node and through kubectl: ``python -m dashboards.runbooks`` writes them.

The commands are those that the alert and the page name. Everything else on a page is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from ruamel.yaml import YAML

# Where the name of an alert leads while nobody has said where the runbooks are: Grafana's own list of alerts. The
# chart's value `runbookUrl` puts the page of the alert there.
NO_PAGE = "/alerting/list?search=${__data.fields.alertname}"
BEGIN, END = "<!-- commands: begin, made by `make docs` -->", "<!-- commands: end -->"
NEXT = "\n## How you know it is over"
FIND = (
    "kubectl get pods -n NAMESPACE -l app.kubernetes.io/name=autoclave --field-selector spec.nodeName=NODE "
    "-L app.kubernetes.io/component"
)
IN_POD = "kubectl exec -n NAMESPACE POD -c scrubber --"
COMMAND = re.compile(r"`autoclave ([^`]*)`")

_BLOCK = re.compile(f"\n{re.escape(BEGIN)}\n.*?{re.escape(END)}\n", re.DOTALL)
_IF_CLUSTER = re.compile(r"\{\{ with .*?\{\{ end \}\}")
_LABEL = re.compile(r"\{\{ \$(?:labels\.)?(\w+) \}\}")
_NO_LABELS = {
    ": <reason>": "",
    ": <sign>": "",
    ": <outcome>": "",
    "XID <xid>": "a grave XID",
    "GPU <gpu> on <node>": "the GPU",
    "<value> GPUs": "several GPUs",
    "policy <policy>": "a policy",
    "<node>": "the node",
    "<resource>": "the resource",
    "<job>": "the program",
}


def summaries() -> dict[str, str]:
    """The summary of each alert without its labels: where it is shown, they have columns of their own."""
    return {name: _without_labels(text) for name, text in _annotations("summary")}


def descriptions() -> dict[str, str]:
    """The description of each alert, with words in capitals for its labels."""
    return {name: _in_words(text) for name, text in _annotations("description")}


def _annotations(kind: str) -> Iterator[tuple[str, str]]:
    text = (resources.files("dashboards") / "alerts.yaml").read_text(encoding="utf-8")
    for group in YAML(typ="safe", pure=True).load(text)["groups"]:
        yield from ((rule["alert"], rule["annotations"][kind]) for rule in group["rules"])


def _in_words(text: str) -> str:
    words = {"value": "N", "xid": "CODE"}
    return _LABEL.sub(lambda found: words.get(found[1], found[1].upper()), _IF_CLUSTER.sub("", text))


def _without_labels(text: str) -> str:
    text = _LABEL.sub(r"<\1>", _IF_CLUSTER.sub("", text))
    for labels, words in _NO_LABELS.items():
        text = text.replace(labels, words)
    return text[0].upper() + text[1:]


def commands(description: str, page: str) -> list[str]:
    """What to run: the command of the alert, and the commands of the page below "What to do"."""
    by_hand = _BLOCK.sub("", page).partition("\n## What to do")[2]
    named = COMMAND.findall(" ".join(f"{description} {by_hand}".split()))
    return list(dict.fromkeys(named))


def with_commands(description: str, page: str) -> str:
    """The page with its commands in both forms."""
    named = commands(description, page)
    rows = "".join(f"| `autoclave {command}` | `kubectl autoclave NODE {command}` |\n" for command in named)
    if "`nvidia-smi`" in page:
        rows += f"| `nvidia-smi` | `{IN_POD} nvidia-smi` |\n"
    rows += "| `journalctl -u autoclave-scrubber` | `kubectl logs -n NAMESPACE POD` |\n"
    block = f"""
{BEGIN}
| on the node | through kubectl, with [`kubectl-autoclave`](../install.md#commands-for-one-node) |
|---|---|
{rows}
Find the pods of the node, and run a command in the scrubber's pod without that plugin:

```
{FIND}
{IN_POD} autoclave {named[0]}
```
{END}
"""
    before, heading, after = _BLOCK.sub("", page).partition(NEXT)
    return f"{before}{block}{heading}{after}"


def write(folder: Path) -> None:
    """Write the commands of every page anew."""
    for name, description in descriptions().items():
        path = folder / f"{name}.md"
        path.write_text(with_commands(description, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
