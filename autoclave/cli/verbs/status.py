"""``autoclave status``: the state of each GPU, once or live."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict, Unpack

import click

from autoclave.cli import cells, custom_columns, human, options, selection, service_call, status_view, status_watch

CHOICES = ("table", "wide", "json", "yaml", custom_columns.PREFIX)


class _Output(click.Choice[Any]):
    """One of the choices; the last one is the beginning of a specification."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's own
        if not (isinstance(value, str) and value.startswith(custom_columns.PREFIX)):
            return super().convert(value, param, ctx)
        try:
            return custom_columns.parse(value.removeprefix(custom_columns.PREFIX))
        except ValueError as error:
            self.fail(f"found {value!r}, {error}", param, ctx)


class Filters(TypedDict):
    """The flags that select GPUs."""

    state: tuple[str, ...]
    unhealthy: bool
    selector: tuple[selection.Term, ...] | None
    sort_by: str | None


@click.command(context_settings=options.ENVIRONMENT)
@options.gpus
@click.option(
    "--state",
    type=click.Choice(cells.STATES),
    multiple=True,
    help="Only GPUs in this state; may be repeated.",
)
@click.option("--unhealthy", is_flag=True, help="Only GPUs that are not healthy.")
@click.option(
    "-l",
    "--selector",
    type=options.Parsed("selector", selection.selector),
    help="Only GPUs that fit, as in model=H100,index!=3 or 'index in (0,1)'. Keys: index, model, resource.",
)
@click.option(
    "--sort-by",
    type=click.Choice(list(selection.ORDERS)),
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
    output: str | custom_columns.Columns,
    no_headers: bool,
    watch: bool,
    run_dir: Path,
    **filters: Unpack[Filters],
) -> None:
    """Show the state of GPUs, and why.

    On a terminal, the table begins with the GPUs in trouble and ends with a line of totals. A pipe gets neither.
    """
    order = filters["sort_by"] or ("trouble" if status_view.for_people(output) else "gpu")
    chosen = selection.Selection(frozenset(filters["state"]), filters["unhealthy"], filters["selector"] or (), order)
    form = status_view.Form(chosen, output, headers=not no_headers)
    if watch:
        service_call.ask(run_dir, lambda admin: status_watch.watch(admin, gpus, form))
        return
    status = service_call.ask(run_dir, lambda admin: admin.status(gpus))
    status_view.show(status, form)
    for fault in status_view.faults(status.service):
        click.echo(f"autoclave: {human.printable(fault)}", err=True)
