"""``python -m dashboards``: write the JSON of all pages (``make dashboards``)."""

from pathlib import Path

from dashboards.build import write

write(Path(__file__).with_name("grafana"))
