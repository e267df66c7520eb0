"""What a dashboard shows of an alert: its summary, and where its name leads."""

from __future__ import annotations

import re
from importlib import resources

from ruamel.yaml import YAML

# Where the name of an alert leads while nobody has said where the runbooks are: Grafana's own list of alerts. The
# chart's value `runbookUrl` puts the page of the alert there.
NO_PAGE = "/alerting/list?search=${__data.fields.alertname}"

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
    text = (resources.files("dashboards") / "alerts.yaml").read_text(encoding="utf-8")
    groups = YAML(typ="safe", pure=True).load(text)["groups"]
    return {
        rule["alert"]: _without_labels(rule["annotations"]["summary"]) for group in groups for rule in group["rules"]
    }


def _without_labels(text: str) -> str:
    text = _LABEL.sub(r"<\1>", _IF_CLUSTER.sub("", text))
    for labels, words in _NO_LABELS.items():
        text = text.replace(labels, words)
    return text[0].upper() + text[1:]
