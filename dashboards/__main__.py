"""``python -m dashboards``: write all pages anew (``make dashboards``)."""

from pathlib import Path

from dashboards.build import write

write(Path(__file__).with_name("grafana"))
