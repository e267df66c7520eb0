"""``docs/metrics.md``, generated from both tables of metrics.

``python -m dashboards.reference > docs/metrics.md`` writes it; a test compares the two.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from plugin.metrics import table as of_the_plugin
from scrubber.ground.metric_table import Row
from scrubber.metrics import table as of_the_service

HEAD = """\
# Metrics

`make docs` writes this page from the tables `scrubber/metrics/table.py` and `plugin/metrics/table.py`: change those
instead. Names and labels are a stable contract.

## How to get them

The scrub service and the device plugin each show their own, at the address that `--metrics-address HOST:PORT` gives,
for example `$(POD_IP):9475` and `$(POD_IP):9476`; without the flag, nowhere. Its variable has one name for both, as
with every flag: set `AUTOCLAVE_METRICS_ADDRESS` for each program (container, unit) by itself. A second one at the
same address ends at once and says so. The door speaks plain HTTP and asks nobody for a name or a password: bind it to
the pod's address or to loopback, never to one that strangers reach. It answers:

| path | |
|---|---|
| `/metrics` | OpenMetrics where Prometheus asks for it, else Prometheus' text format |
| `/healthz` | 200 while the program's loop answers: for a liveness probe |
| `/readyz` | 200, or 503 and one line for each thing that is in the way: for a readiness probe |

Beside the tables below there is what the process itself uses: `process_cpu_seconds_total`, `process_open_fds`,
`process_resident_memory_bytes` and so on.

**Names.** `gpu` is what people call a device (`0`, and `0:1` for a slice), `uuid` its name for good; what else it is
says `autoclave_device_info`, to be joined on `uuid`. There is no `node`: the scrape configuration adds it. No label
holds a pod, a process or a receipt, so the number of series follows from the hardware and from nothing that tenants
do.

**Absent is not zero.** What the hardware cannot tell, what is not known and what has left has no series. An alert on
a value needs another one, on its absence, where that matters.

**Exemplars.** Where a row of the histograms has a proof, the newest sample of a bucket carries its receipt
(`receipt="..."`, OpenMetrics only; Prometheus wants `--enable-feature=exemplar-storage`). `autoclave ledger export`
has the row of that receipt.
"""


def text() -> str:
    """The whole page."""
    service = _section("The scrub service", of_the_service.TABLE)
    return "\n".join([HEAD, *service, *_section("The device plugin", of_the_plugin.TABLE)])


def _section(title: str, table: Iterable[Row]) -> Iterator[str]:
    rows = tuple(table)
    yield f"## {title}\n"
    yield "| name | kind | unit | labels | |"
    yield "|---|---|---|---|---|"
    yield from map(_line, rows)
    yield ""
    yield from map(_buckets, (row for row in rows if row.buckets))
    yield ""


def _line(row: Row) -> str:
    labels = ", ".join(f"`{label}`" for label in row.all_labels if label != "le")
    return f"| `{row.name}` | {row.kind.value} | {row.unit} | {labels} | {row.help} |"


def _buckets(row: Row) -> str:
    bounds = ", ".join(f"{bound:g}" for bound in row.buckets)
    return f"* `{row.name}`: buckets up to {bounds} {row.unit}, and +Inf."


if __name__ == "__main__":
    sys.stdout.write(text().rstrip("\n") + "\n")
