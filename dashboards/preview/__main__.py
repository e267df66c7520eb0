"""``make preview``, ``python -m dashboards.preview OUT_DIR``: a picture of each page, with the data of a Prometheus."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import click

from dashboards import shipped

HERE = Path(__file__).parent
BUILD = HERE.parent.parent / "build" / "preview"
MODULES, SITE = BUILD / "node_modules", BUILD / "site"
WIDTH, TOP, CELL, FOOT = 1600, 96, 38, 4  # pixels; page.tsx has the same values
COLUMN = 60  # pixels: a column of the grid has about as many points
COLOURS = 128
DRAWS_WITHIN, INSTALLS_WITHIN = 60.0, 900.0
HTML = """<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="page.css"><div id="page"></div>
<script>window.__grafana_public_path__ = "public/"; window.PREVIEW = {data};</script><script src="page.js"></script>
"""


@dataclass(frozen=True, slots=True)
class Source:
    """A Prometheus, a time range that ends now, and the chosen values of the variables."""

    url: str
    seconds: int
    ends: float
    scrape: int  # seconds between two scrapes
    chosen: Mapping[str, str]

    def panel(self, panel: Mapping[str, Any]) -> dict[str, Any]:
        """The step between two points of a panel, and the answer to each of its queries."""
        step = max(self.scrape, -(-self.seconds // (panel["gridPos"]["w"] * COLUMN)))
        return {"step": step, "answers": {target["refId"]: self._answer(target, step) for target in panel["targets"]}}

    def with_first_values(self, page: Mapping[str, Any]) -> dict[str, str]:
        """The chosen values, and the first value of each variable of a page that has no *All*."""
        values = dict(self.chosen)
        for variable in page["templating"]["list"]:
            if variable["type"] == "query" and not variable["includeAll"] and variable["name"] not in values:
                selector = variable["query"]["query"].removeprefix("label_values(").rsplit(",", 1)[0]
                where = {"match[]": shipped.filled(selector, {**shipped.EVERYTHING, **values})}
                names = asked(self.url, f"label/{variable['name']}/values", **where)["data"]
                values[variable["name"]] = names[0] if names else ""
        return values

    def _answer(self, target: Mapping[str, Any], step: int) -> dict[str, Any]:
        rate = max(step + self.scrape, 4 * self.scrape)  # as Grafana does
        times = {"__interval": f"{step}s", "__rate_interval": f"{rate}s", "__range": f"{self.seconds}s"}
        query = shipped.filled(target["expr"], {**shipped.EVERYTHING, **times, **self.chosen})
        if target["instant"]:
            return asked(self.url, "query", query=query, time=self.ends)
        begins, ends = ((at // step) * step for at in (self.ends - self.seconds, self.ends))
        return asked(self.url, "query_range", query=query, start=begins, end=ends, step=step)


def asked(url: str, path: str, **words: str | float) -> dict[str, Any]:
    """The answer of Prometheus, which may be an error. Raises if Prometheus does not answer."""
    try:
        with urlopen(f"{url}/api/v1/{path}?{urlencode(words)}", timeout=DRAWS_WITHIN) as reply:  # noqa: S310 - the caller names it
            return dict(json.load(reply))
    except HTTPError as error:
        return dict(json.load(error))
    except URLError as error:
        raise click.ClickException(f"cannot draw: no Prometheus answers at {url}: {error.reason}") from None


def prepare() -> None:
    """Install the npm packages if ``package.json`` has changed, and bundle the page. No package runs a script."""
    wanted = (HERE / "package.json").read_bytes()
    mark = BUILD / "installed.json"
    if not mark.is_file() or mark.read_bytes() != wanted:
        shutil.rmtree(BUILD, ignore_errors=True)
        (SITE / "public" / "build").mkdir(parents=True)
        shutil.copy(HERE / "package.json", BUILD)
        run(
            "npm", "install", "--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund", within=INSTALLS_WITHIN
        )
        (SITE / "public" / "build" / "img").symlink_to(MODULES / "@grafana" / "ui" / "dist" / "public" / "img")
        mark.write_bytes(wanted)
    run(
        str(MODULES / ".bin" / "esbuild"), str(HERE / "page.tsx"), "--bundle", "--minify", "--jsx=automatic",
        "--log-level=error", '--define:process.env.NODE_ENV="production"', f"--outfile={SITE / 'page.js'}",
        "--loader:.woff2=dataurl", "--loader:.woff=empty", "--loader:.ttf=empty", NODE_PATH=str(MODULES),
    )  # fmt: skip


def draw(data: Mapping[str, Any], address: str, cells: int, picture: Path) -> None:
    """Write a page as a PNG with a palette: the head and so many rows of its grid."""
    text = json.dumps(data).replace("<", "\\u003c")
    (SITE / "index.html").write_text(HTML.format(data=text), encoding="utf-8")
    run(
        "chromium", "--headless", *(["--no-sandbox"] if os.geteuid() == 0 else []), "--hide-scrollbars",
        "--disable-gpu", "--disable-background-networking", "--force-color-profile=srgb",
        f"--window-size={WIDTH},{TOP + cells * CELL + FOOT}", "--virtual-time-budget=5000",
        f"--user-data-dir={BUILD / 'browser'}", f"--screenshot={picture.resolve()}", address,
    )  # fmt: skip
    run("pngquant", "--force", "--speed", "1", "--output", str(picture.resolve()), str(COLOURS), str(picture.resolve()))


def run(*command: str, within: float = DRAWS_WITHIN, **env: str) -> None:
    """Run a program in the build folder. Raises if it is missing or fails."""
    try:
        subprocess.run(
            command, cwd=BUILD, env={**os.environ, **env}, capture_output=True, text=True, timeout=within, check=True
        )
    except FileNotFoundError:
        raise click.ClickException(f"cannot draw: {command[0]} is not installed") from None
    except subprocess.CalledProcessError as error:
        raise click.ClickException(f"cannot draw: {command[0]} failed: {error.stderr.strip()[-2000:]}") from None


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Write no access log."""


@click.command(help="A picture of each page, with the data of a Prometheus. A preview, not Grafana.")
@click.argument("out", metavar="OUT_DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--url", default="http://127.0.0.1:19477", show_default=True, help="The Prometheus.")
@click.option("--page", "uids", multiple=True, metavar="UID", help="Only this page; may be repeated.")
@click.option("--minutes", default=15, show_default=True, help="The time range, which ends now.")
@click.option("--set", "choices", multiple=True, metavar="NAME=VALUE", help="The value of a variable, as in gpu=3.")
@click.option("--cells", type=click.IntRange(min=1), help="Draw only so many rows of the grid.")
def main(out: Path, url: str, uids: tuple[str, ...], minutes: int, choices: tuple[str, ...], cells: int | None) -> None:
    """Run the queries, draw the pages, and print the paths of the pictures."""
    prepare()
    out.mkdir(parents=True, exist_ok=True)
    targets = asked(url, "targets", state="active")["data"]["activeTargets"]
    scrape = max((round(shipped.seconds(target["scrapeInterval"])) for target in targets), default=15)
    source = Source(url, 60 * minutes, time.time(), scrape, dict(choice.split("=", 1) for choice in choices))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(SITE))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        for uid, page in sorted(shipped.pages().items()):
            if uids and uid not in uids:
                continue
            here = replace(source, chosen=source.with_first_values(page))
            shown = [panel for panel in page["panels"] if panel["type"] != "row"]
            data = {
                "dashboard": page, "from": here.ends - here.seconds, "to": here.ends, "chosen": here.chosen,
                "asked": {panel["id"]: here.panel(panel) for panel in shown},
            }  # fmt: skip
            rows = cells or max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in page["panels"])
            draw(data, f"http://127.0.0.1:{server.server_address[1]}", rows, out / f"{uid}.png")
            click.echo(f"{out / uid}.png")
        server.shutdown()


if __name__ == "__main__":
    main()
