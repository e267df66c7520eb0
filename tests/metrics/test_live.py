"""What the running service shows at its metrics address after a story."""

from __future__ import annotations

import asyncio
import json

import pytest

from ground.errors import AutoclaveError
from scrub_api import client
from scrubber.devices.simulated import drills
from scrubber.metrics import service_metrics
from tests.fetching import Scraped, fetch, lint, metrics
from tests.live import Service

ANYWHERE = ("--metrics-address", "127.0.0.1:0")


def address_of(service: Service) -> str:
    return str(next(json.loads(line)["address"] for line in service.log_lines if "showing metrics" in line))


def scrape(service: Service) -> Scraped:
    return Scraped(metrics(address_of(service)), service_metrics.TABLE)


@pytest.fixture
def service(short_tmp):
    running = Service(short_tmp, 2, *ANYWHERE)
    yield running
    if running.process.poll() is None:
        running.stop()


def acquire(service: Service, uuid: str) -> None:
    async def ask() -> None:
        async with client.ScrubberClient(service.run_dir / "scrubber.sock") as scrubber:
            await scrubber.acquire([uuid])

    asyncio.run(ask())


def test_the_metrics_of_a_whole_story(service):
    clean = service.settled(0, "clean")
    service.settled(1, "clean")
    names = {"gpu": "0", "uuid": clean.device}
    first = scrape(service)
    assert first.one("autoclave_device_state", state="clean", **names) == 1
    assert first.one("autoclave_device_healthy", **names) == 1
    assert first.one("autoclave_device_info", model="Simulated GPU", **names) == 1
    assert first.one("autoclave_last_scrub_timestamp_seconds", **names) == pytest.approx(clean.receipt.finished)
    assert first.one("autoclave_scrub_coverage_ratio", **names) == 1
    assert first.one("autoclave_scrub_uncovered_bytes") == 0
    assert first.one("autoclave_device_temperature_celsius", **names) > 0
    assert first.one("autoclave_ready") == 1
    assert first.one("autoclave_build_info", backend="simulated") == 1
    assert first.one("process_resident_memory_bytes") > 0
    receipts = {clean.receipt.id, service.settled(1, "clean").receipt.id}
    led = first.receipts(service_metrics.SCRUB_TIME)
    assert led  # of each bucket the last one
    assert led <= receipts

    acquire(service, clean.device)
    with pytest.raises(AutoclaveError):
        acquire(service, "GPU-unknown")
    drills.occupy(service.simulated_dir, clean.device, b"secret", "pod-1", 0)
    drills.lose(service.simulated_dir, service.settled(1, "clean").device)
    out = service.settled(1, "quarantined")
    later = scrape(service)
    assert later.one("autoclave_grants_total", proof="receipt") == 1
    assert later.one("autoclave_request_duration_seconds_count", request="acquire", outcome="ok") == 1
    assert later.one("autoclave_request_refusals_total", request="acquire", reason="unknown-device") == 1
    assert later.one("autoclave_quarantined", gpu="1", uuid=out.device, reason="lost") == 1
    assert later.one("autoclave_quarantines_total", reason="lost") == 1
    assert later.one("autoclave_quarantine_since_timestamp_seconds", gpu="1") == pytest.approx(out.quarantine.since)
    assert later.one("autoclave_device_healthy", gpu="1") == 0
    drills.release(service.simulated_dir, clean.device)

    assert later.unknown() == []
    assert len({it.name for it in later.samples if it.name.startswith("autoclave_")}) > len(service_metrics.TABLE) / 2
    lint(fetch(address_of(service), "/metrics")[1])
