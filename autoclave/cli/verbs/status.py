"""``autoclave status``: the state of each GPU, once or live."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict, Unpack

import click

from autoclave.cli import ENVIRONMENT, document, human, options, service_call, status_view, table

CHOICES = ("table", "wide", "json", "yaml", document.CUSTOM_COLUMNS)


class _Output(click.Choice[Any]):
    """One of the choices; the last one is the beginning of a specification."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's own
        if not (isinstance(value, str) and value.startswith(document.CUSTOM_COLUMNS)):
            return super().convert(value, param, ctx)
        try:
            return document.parse_columns(value.removeprefix(document.CUSTOM_COLUMNS))
        except ValueError as error:
            self.fail(f"found {value!r}, {error}", param, ctx)


class Filters(TypedDict):
    """The flags that select GPUs."""

    state: tuple[str, ...]
    unhealthy: bool
    selector: tuple[status_view.Term, ...] | None
    sort_by: str | None


@click.command(context_settings=ENVIRONMENT)
@options.gpus
@click.option(
    "--state",
    type=click.Choice(table.STATES),
    multiple=True,
    help="Only GPUs in this state; may be repeated.",
)
@click.option("--unhealthy", is_flag=True, help="Only GPUs that are not healthy.")
@click.option(
    "-l",
    "--selector",
    type=options.Parsed("selector", status_view.selector),
    help="Only GPUs that fit, as in model=H100,index!=3 or 'index in (0,1)'. Keys: index, model, resource.",
)
@click.option(
    "--sort-by",
    type=click.Choice(list(status_view.ORDERS)),
    help="The order; by default trouble for a table on a terminal, gpu elsewhere.",
)
@click.option(
    "-o",
    "--output",
    type=_Output(CHOICES),
    default="table",
    metavar="[table|wide|json|yaml|custom-columns=SPEC]",
    help="Output format. SPEC is HEADER:FIELD,... with fields of json, as in GPU:.name,SINCE:.since.",
)
@click.option("--no-headers", is_flag=True, help="Print a table without headers and without the line of totals.")
@click.option("-w", "--watch", is_flag=True, help="Keep running and show every change.")
@options.run_dir
def command(
    gpus: tuple[str, ...],
    output: str | document.Columns,
    no_headers: bool,
    watch: bool,
    run_dir: Path,
    **filters: Unpack[Filters],
) -> None:
    """Show the state of GPUs, and why.

    On a terminal, the table begins with the GPUs in trouble and ends with a line of totals. A pipe gets neither.
    """
    order = filters["sort_by"] or ("trouble" if status_view.for_people(output) else "gpu")
    chosen = status_view.Selection(frozenset(filters["state"]), filters["unhealthy"], filters["selector"] or (), order)
    form = status_view.Form(chosen, output, headers=not no_headers)
    if watch:
        service_call.ask(run_dir, lambda admin: status_view.watch(admin, gpus, form))
        return
    status = service_call.ask(run_dir, lambda admin: admin.status(gpus))
    status_view.show(status, form)
    for fault in status_view.faults(status.service):
        click.echo(f"autoclave: {human.printable(fault)}", err=True)
