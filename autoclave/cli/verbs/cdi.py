"""``autoclave cdi``: writes the CDI specification that lets container runtimes find GPUs by UUID."""

from __future__ import annotations

from pathlib import Path

import click

from autoclave.cli import DONE, ENVIRONMENT, LATE, cdi_file, human, options
from autoclave.doctor.findings import hardware
from scrubber.ground import paths
from scrubber.ground.documents import units
from scrubber.ground.errors import NotReady


@click.command(context_settings=ENVIRONMENT)
@click.option(
    "--cdi-dir",
    type=options.PATH,
    multiple=True,
    default=paths.CDI_DIRS,
    help="A directory that container runtimes read; can be repeated. The first one gets the file.",
)
@click.option("--cdi-kind", default=hardware.KIND, metavar="VENDOR/CLASS", help="The kind in CDI device names.")
@click.option(
    "--host-root", type=options.DIRECTORY, default="/", help="Where this process sees the host's root directory."
)
@click.option(
    "--driver-root",
    type=options.PATH,
    default="/",
    help="The root of the driver on the host: /run/nvidia/driver with a driver container.",
)
@click.option(
    "--timeout",
    type=options.Parsed("duration", units.parse_duration),
    default="1m",
    help="How long nvidia-ctk may take.",
)
def command(cdi_dir: tuple[Path, ...], cdi_kind: str, host_root: Path, driver_root: Path, timeout: float) -> int:
    """Write the CDI specification of this node's GPUs, with nvidia-ctk.

    Container runtimes find a GPU by its name there. This runs `nvidia-ctk cdi generate` of the host, checks that it
    names each GPU by UUID, and writes the file autoclave-nvidia.json. It leaves out GPUs that another specification
    names, because a runtime refuses a GPU that two files name. Run it again after each driver update.
    """
    directories = tuple(dict.fromkeys(directory.resolve() for directory in cdi_dir))
    file = directories[0] / cdi_file.NAME
    elsewhere = cdi_file.others(file, directories)
    for spec in elsewhere:
        if spec.fault is not None:
            click.echo(human.printable(f"autoclave: cannot use {spec.path}: {spec.fault.text}"), err=True)
    try:
        made = cdi_file.Generator(host_root, driver_root, timeout).generate(cdi_kind)
    except NotReady as late:
        click.echo(f"autoclave: {late}", err=True)
        return LATE
    click.echo(human.printable(cdi_file.write(file, made, elsewhere)))
    return DONE
