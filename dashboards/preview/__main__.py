"""``python -m dashboards.preview PROMETHEUS_URL OUT_DIR``: a picture of each page (``make preview``)."""

from __future__ import annotations

import time
from pathlib import Path

import click

from dashboards import shipped
from dashboards.preview import queries, rendering


def _duration(_: click.Context, __: click.Parameter, said: str) -> str:
    try:
        queries.seconds(said or "1s")
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return said


@click.command(help="A picture of each page, with the data of a Prometheus. A preview, not Grafana.")
@click.argument("url", metavar="PROMETHEUS_URL")
@click.argument("out", metavar="OUT_DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--page", "uids", multiple=True, metavar="UID", help="Only this page; may be repeated.")
@click.option("--theme", type=click.Choice(["light", "dark"]), default="dark", show_default=True)
@click.option(
    "--last",
    metavar="TIME",
    default="",
    callback=_duration,
    help="The time range, as in 15m [default: the time range of each page].",
)
@click.option("--set", "choices", multiple=True, metavar="NAME=VALUE", help="The value of a variable, as in gpu=3.")
@click.option("--cells", type=click.IntRange(min=1), help="Draw only the first rows of the grid of each page.")
def main(
    url: str, out: Path, uids: tuple[str, ...], theme: str, last: str, choices: tuple[str, ...], cells: int | None
) -> None:
    """Run the queries, draw the pages, and print the paths of the pictures."""
    url, ends = url.rstrip("/"), time.time()
    scrape = queries.scrape_interval(url)
    chosen = {name: value for name, _, value in (choice.partition("=") for choice in choices)}
    out.mkdir(parents=True, exist_ok=True)
    site = rendering.prepared()
    with rendering.served(site) as address:
        for uid, page in sorted(shipped.pages().items()):
            if uids and uid not in uids:
                continue
            span = last or page["time"]["from"].removeprefix("now-")
            source = queries.Source(url, ends - queries.seconds(span), ends, scrape)
            panels, values = queries.unfolded(page), queries.choices(page, source, chosen)
            data = {
                "dashboard": {**page, "panels": panels}, "theme": theme, "from": source.begins, "to": ends,
                "span": span, "chosen": values, "asked": queries.asked(panels, source, values),
                "marks": queries.marks(page, source, values),
            }  # fmt: skip
            into = out / f"{uid}.png"
            rendering.picture(site, address, data, cells or queries.height(panels), into)
            click.echo(f"{into} {into.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
