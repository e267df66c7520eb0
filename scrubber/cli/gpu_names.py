"""GPU names for the shell: asked of the service, quickly, and silent when it does not answer."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import CompletionItem

from scrubber.cli import service_call
from scrubber.core import views
from scrubber.ground import paths
from scrubber.ground.errors import AutoclaveError

PATIENCE = 0.5  # seconds that somebody at a prompt may be kept waiting


def gpus(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Indices and UUIDs that go on from what was typed."""
    del param
    run_dir = Path(ctx.params.get("run_dir") or paths.RUN_DIR)
    try:
        status = service_call.ask(run_dir, lambda admin: admin.status(timeout=PATIENCE))
    except AutoclaveError:
        return []
    return [item for device in status.devices for item in _items(device) if item.value.startswith(incomplete)]


def _items(device: views.DeviceStatus) -> tuple[CompletionItem, ...]:
    told = f"{device.state} {device.model}"
    return CompletionItem(device.name, help=told), CompletionItem(device.device, help=told)
