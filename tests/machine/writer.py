"""Runs inside the machine: keeps the ledger of the service busy, and says what the service has acknowledged.

``writer.py LIFE``: one task for each GPU acquires it, releases it, and waits until it is clean; now and then it
quarantines it, and reinstates it. Each line of the output is one answer of the service, written when it has come.
"""

from __future__ import annotations

import asyncio
import json
import sys
from itertools import count
from pathlib import Path

from ground import paths
from ground.errors import AutoclaveError
from scrub_api.admin_client import AdminClient
from scrub_api.client import ScrubberClient

RUN_DIR = Path(paths.RUN_DIR)
QUARANTINED_EVERY = 2


def say(**words: object) -> None:
    """One answer that has come."""
    print(json.dumps(words), flush=True)  # noqa: T201 - the output


async def use(life: str, device: str, scrubber: ScrubberClient, admin: AdminClient) -> None:
    """Play the jobs of one GPU, one after the other, for ever."""
    for turn in count():
        owner = f"{life}.{turn}."  # no owner is the beginning of another
        try:
            await until_clean(device, admin)
            await scrubber.acquire([device], exclusive=True, owner=owner)
            say(kind="granted", device=device, body=owner)
            await scrubber.release([device], owner=owner)
            say(kind="released", device=device)
            if turn % QUARANTINED_EVERY == QUARANTINED_EVERY - 1:
                await admin.quarantine(device, owner, "writer")
                say(kind="quarantined", device=device, body=owner)
                say(reinstating=device)
                async for _ in admin.reinstate([device], owner, "writer", without_evidence=True):
                    pass
                say(kind="reinstated", device=device)
        except AutoclaveError as error:
            print(error, file=sys.stderr)  # noqa: T201 - for the one who looks


async def until_clean(device: str, admin: AdminClient) -> None:
    """Say how many rows the service has shown meanwhile."""
    newest = 0
    while True:
        status = await admin.status([device], newer_than=newest, wait=10)
        newest = status.service.ledger_rows
        say(rows=newest)
        if status.devices[0].state == "clean":
            return


async def main(life: str) -> None:
    """Begins as soon as the service answers."""
    async with (
        ScrubberClient(paths.scrubber_socket(RUN_DIR)) as scrubber,
        AdminClient(paths.admin_socket(RUN_DIR)) as admin,
    ):
        while True:
            try:
                devices = (await admin.status()).devices
                break
            except AutoclaveError:
                await asyncio.sleep(0.2)
        say(devices=[device.device for device in devices])
        await asyncio.gather(*(use(f"{life}.{each.index}", each.device, scrubber, admin) for each in devices))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
