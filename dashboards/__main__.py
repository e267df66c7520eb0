"""``python -m dashboards``: write the JSON of all pages (``make dashboards``), and the chart's links to them."""

from pathlib import Path

from dashboards.build import write

HERE = Path(__file__).parent
LINKS = HERE.parent / "deploy/helm/autoclave/files/dashboards"  # one for each: an sdist drops a linked directory

write(HERE / "grafana")
for link in LINKS.iterdir():
    link.unlink()
for page in (HERE / "grafana").iterdir():
    (LINKS / page.name).symlink_to(Path("../../../../../dashboards/grafana", page.name))
