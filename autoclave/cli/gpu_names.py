"""GPU names for shell completion. Returns none when the service does not answer quickly."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import CompletionItem

from autoclave.cli import service_call
from scrubber.core import views
from scrubber.ground import paths
from scrubber.ground.errors import AutoclaveError

PATIENCE = 0.5  # seconds that the person at the prompt waits at most


def gpus(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Indices and UUIDs that start with the typed text."""
    del param
    run_dir = Path(ctx.params.get("run_dir") or paths.RUN_DIR)
    try:
        status = service_call.ask_now(run_dir, lambda admin: admin.status(timeout=PATIENCE))
    except AutoclaveError:
        return []
    return [item for device in status.devices for item in _items(device) if item.value.startswith(incomplete)]


def _items(device: views.DeviceStatus) -> tuple[CompletionItem, ...]:
    text = f"{device.state} {device.model}"
    return CompletionItem(device.name, help=text), CompletionItem(device.device, help=text)
