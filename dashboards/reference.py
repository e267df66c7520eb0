"""``docs/metrics.md``, generated from the tables of metrics, and the table of ``docs/alerts.md``, from the alerts.

``python -m dashboards.reference > docs/metrics.md`` writes the one, ``python -m dashboards.reference docs/alerts.md``
the other. Tests compare both.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path

from ruamel.yaml import YAML

from ground.metric_table import Row
from plugin.metrics import plugin_metrics as of_the_plugin
from scrubber.metrics import service_metrics as of_the_service

HEAD = """\
# Metrics

`make docs` generates this page from `scrubber/metrics/service_metrics.py` and `plugin/metrics/plugin_metrics.py`. Names
and labels are a stable contract.

## How to get them

The scrub service, the device plugin and the DRA driver serve their metrics at the address of `--metrics-address
HOST:PORT`, for example `$(POD_IP):9475` and `$(POD_IP):9476`. The server speaks plain HTTP without authentication. Bind
it to the address of the pod or to the loopback, never to a public address. It answers:

| path | |
|---|---|
| `/metrics` | OpenMetrics if the client asks for it, else the Prometheus text format |
| `/healthz` | 200 while the event loop of the program answers: for a liveness probe |
| `/readyz` | 200, or 503 and one line for each cause: for a readiness probe |

A scrub service on standby (`--standby`) is ready, and has no `autoclave_ready`. After ten minutes on standby it is not
ready any more. A plugin on standby stays ready. It has no `autoclave_plugin_ready`, and no gauges of lists and of the
kubelet: the present plugin of its node has them.

Each program also serves the metrics of its process: `process_cpu_seconds_total`, `process_open_fds`,
`process_resident_memory_bytes` and so on.

**Names.** `gpu` is the index of a device (`0`, and `0:1` for a slice); `uuid` is its permanent name.
`autoclave_device_info` has the other properties; join it on `uuid`. The scrape configuration adds the label `node`. No
label holds a pod, a process or a receipt, so the number of series depends on the hardware and not on tenants.

**Absent is not zero.** A value that the hardware does not report, an unknown value, or a device that is gone has no
series.

**Exemplars.** In histograms of scrubs and calls, the newest sample of a bucket may have an exemplar with its receipt
(`receipt="..."`). `autoclave ledger export` has the row of the receipt.
"""
ALERTS = "| alert | severity | for | threshold |\n|---|---|---|---|\n"
_THRESHOLD = re.compile(r"((?: +# .+\n)+) +- alert: (\w+)\n")  # the comment above an alert


def text() -> str:
    """The whole page."""
    service = _section("The scrub service", of_the_service.TABLE)
    own = tuple(row for row in of_the_plugin.DRA_TABLE if row not in of_the_plugin.TABLE)
    shared = ", ".join(f"`{row.name}`" for row in of_the_plugin.DRA_TABLE if row in of_the_plugin.TABLE)
    driver = (*_section("The DRA driver", own), f"The driver also has {shared} of the plugin.\n")
    return "\n".join([HEAD, *service, *_section("The device plugin", of_the_plugin.TABLE), *driver])


def _section(title: str, table: Iterable[Row]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| name | kind | labels | |"
    yield "|---|---|---|---|"
    yield from map(_line, table)
    yield ""


def _line(row: Row) -> str:
    labels = ", ".join(f"`{label}`" for label in row.all_labels if label != "le")
    return f"| `{row.name}` | {row.kind.value} | {labels} | {row.help} |"


def with_alerts(page: str) -> str:
    """The page with its table as the alerts are now."""
    rules = (resources.files("dashboards") / "alerts.yaml").read_text(encoding="utf-8")
    words = {alert: " ".join(re.findall(r"# (.+)", comment)) for comment, alert in _THRESHOLD.findall(rules)}
    rows = "".join(
        f"| [{rule['alert']}](runbooks/{rule['alert']}.md) | {rule['labels']['severity']} | {rule['for']}"
        f" | {words[rule['alert']]} |\n"
        for group in YAML(typ="safe", pure=True).load(rules)["groups"]
        for rule in group["rules"]
    )
    return re.sub(rf"{re.escape(ALERTS)}(?:\|.*\n)+", lambda _: ALERTS + rows, page)


if __name__ == "__main__":
    if sys.argv[1:]:
        alerts = Path(sys.argv[1])
        alerts.write_text(with_alerts(alerts.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        sys.stdout.write(text().rstrip("\n") + "\n")
