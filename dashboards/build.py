"""All pages, and how they are written. Code that only reads the committed JSON uses ``shipped``."""

from __future__ import annotations

from pathlib import Path

from dashboards.claims import CLAIMS
from dashboards.fleet import FLEET
from dashboards.gpu import GPU
from dashboards.hooks import HOOKS
from dashboards.node import NODE
from dashboards.scrubs import SCRUBS
from dashboards.security import SECURITY

PAGES = (FLEET, NODE, GPU, SCRUBS, HOOKS, CLAIMS, SECURITY)


def write(folder: Path) -> None:
    """Write each page into a file with its name, and delete every other JSON file."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {f"{page.uid}.json": page.text() for page in PAGES}
    for old in folder.glob("*.json"):
        if old.name not in texts:
            old.unlink()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
