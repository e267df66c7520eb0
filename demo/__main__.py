"""``python -m demo`` (``make demo``): the whole story on simulated GPUs, each line checked."""

from __future__ import annotations

import sys

import click

from demo import story
from demo.installation import ByClaims, ByPlugin, ByVendor, Installation
from ground.errors import AutoclaveError

WAYS: dict[str | None, type[Installation]] = {None: ByPlugin, "behind": ByVendor, "dra": ByClaims}


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--gpus", type=click.IntRange(story.LEAST_GPUS, story.MOST_GPUS), default=story.LEAST_GPUS, help="How many GPUs."
)
@click.option(
    "--dra", "way", flag_value="dra", help="With ResourceClaims and the DRA driver, in place of the device plugin."
)
@click.option("--behind", "way", flag_value="behind", help="With a vendor's device plugin behind ours.")
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
@click.option("--keep", is_flag=True, help="Leave the directory with the ledger and the log behind.")
def command(gpus: int, way: str | None, as_json: bool, keep: bool) -> int:
    """Show the whole story on simulated GPUs.

    Starts a kubelet stand-in, the device plugin and the scrub service in a temporary directory. With --dra: the DRA
    driver, and a stand-in for the API server. With --behind: a stand-in for NVIDIA's device plugin, too. Exit code 0
    only if every promise held.
    """
    return story.show(gpus, WAYS[way], as_json=as_json, keep=keep)


def main() -> int:
    """Run the command; an error is one line."""
    try:
        return command(prog_name="python -m demo", standalone_mode=False) or 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130
    except AutoclaveError as error:
        click.echo(f"demo: {error}", err=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
