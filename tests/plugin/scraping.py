"""Figures as Prometheus takes them, and probes as the kubelet sends them."""

import asyncio

from plugin.metrics import plugin_metrics
from tests.fetching import Scraped, fetch, metrics


async def get(address: str, path: str, accept: str = "") -> tuple[int, str]:
    """Status and body."""
    return await asyncio.to_thread(fetch, address, path, accept)


async def scrape(address: str) -> Scraped:
    """All metrics."""
    return Scraped(await asyncio.to_thread(metrics, address), (*plugin_metrics.TABLE, *plugin_metrics.DRA_TABLE))
