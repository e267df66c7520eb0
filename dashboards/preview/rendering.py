"""The npm packages, the bundle, and the headless browser that takes the pictures."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from click import ClickException

HERE = Path(__file__).parent
BUILD = HERE.parent.parent / "build" / "preview"
PINNED = ("package.json", "package-lock.json")
WIDTH, TOP, CELL, FOOT = 1600, 96, 38, 12  # pixels; page.tsx has the same values
INSTALLS_WITHIN, DRAWS_WITHIN = 900.0, 60.0
SETTLES = 5000  # milliseconds of the virtual clock of the browser
HTML = """<!doctype html><meta charset="utf-8"><title>{title}</title><link rel="stylesheet" href="page.css">
<div id="page"></div><script>window.__grafana_public_path__ = "public/"; window.PREVIEW = {data};</script>
<script src="page.js"></script>
"""


def prepared() -> Path:
    """The folder to serve: the bundle and the icons of Grafana, rebuilt if they are outdated."""
    modules, site = BUILD / "node_modules", BUILD / "site"
    icons = site / "public" / "build" / "img"
    wanted = (HERE / "package-lock.json").read_text(encoding="utf-8")
    mark = BUILD / "installed"
    if not mark.is_file() or mark.read_text(encoding="utf-8") != wanted:
        BUILD.mkdir(parents=True, exist_ok=True)
        for name in PINNED:
            shutil.copy(HERE / name, BUILD / name)
        _run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", within=INSTALLS_WITHIN)
        mark.write_text(wanted, encoding="utf-8")
    if not icons.is_symlink():
        icons.parent.mkdir(parents=True, exist_ok=True)
        icons.symlink_to(modules / "@grafana" / "ui" / "dist" / "public" / "img", target_is_directory=True)
    _run(
        str(modules / ".bin" / "esbuild"), str(HERE / "page.tsx"), "--bundle", "--minify", "--jsx=automatic",
        f"--outfile={site / 'page.js'}", "--loader:.woff2=dataurl", "--loader:.woff=empty",
        "--loader:.ttf=empty", "--log-level=error",
        '--define:process.env.NODE_ENV="production"', within=DRAWS_WITHIN, NODE_PATH=str(modules),
    )  # fmt: skip
    return site


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a folder on the loopback, and return its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def picture(site: Path, address: str, data: Mapping[str, Any], cells: int, into: Path) -> None:
    """Write one page as a PNG of its full height."""
    title = data["dashboard"]["uid"]
    said = json.dumps(data).replace("<", "\\u003c")
    (site / f"{title}.html").write_text(HTML.format(title=title, data=said), encoding="utf-8")
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    _run(
        "chromium", "--headless", *root, "--hide-scrollbars", "--disable-gpu", "--force-color-profile=srgb",
        f"--window-size={WIDTH},{TOP + cells * CELL + FOOT}", f"--virtual-time-budget={SETTLES}",
        f"--user-data-dir={BUILD / 'browser'}", f"--screenshot={into.resolve()}", f"{address}/{title}.html",
        within=DRAWS_WITHIN,
    )  # fmt: skip


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Write no access log."""


def _run(*command: str, within: float, **env: str) -> None:
    try:
        done = subprocess.run(
            command, cwd=BUILD, env={**os.environ, **env}, capture_output=True, text=True, timeout=within, check=False
        )
    except FileNotFoundError:
        raise ClickException(f"cannot draw: {command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise ClickException(f"cannot draw: {command[0]} did not end within {within:g} s") from None
    if done.returncode:
        raise ClickException(f"cannot draw: {command[0]} ended with {done.returncode}: {done.stderr.strip()[:2000]}")
