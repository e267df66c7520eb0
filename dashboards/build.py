"""All pages, and how they are written to where they are committed. What only reads them takes ``shipped``."""

from __future__ import annotations

from pathlib import Path

from dashboards.fleet import FLEET
from dashboards.gpu import GPU
from dashboards.hooks import HOOKS
from dashboards.node import NODE
from dashboards.scrubs import SCRUBS
from dashboards.security import SECURITY

PAGES = (FLEET, NODE, GPU, SCRUBS, HOOKS, SECURITY)


def write(folder: Path) -> None:
    """Each page into a file of its name; what is there and is no page goes."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {f"{page.uid}.json": page.text() for page in PAGES}
    for old in folder.glob("*.json"):
        if old.name not in texts:
            old.unlink()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
