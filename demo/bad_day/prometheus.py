"""A Prometheus for the trial: on the loopback, with the shipped rules, removed at the end."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from demo.bad_day.node import CLUSTER, NAME, TrialNode
from ground.errors import FatalError

PROGRAM = "prometheus"
JOBS = ("autoclave-scrubber", "autoclave-plugin")
RULES = ("rules.yaml", "alerts.yaml")
STARTS_WITHIN, ENDS_WITHIN = 300.0, 10.0  # seconds; long, for slow machines
POLL = 0.05  # seconds between two checks whether Prometheus is ready


def installed() -> bool:
    """Whether Prometheus is installed on this machine."""
    return shutil.which(PROGRAM) is not None


def with_short_times(rules: str, seconds: float) -> str:
    """The same rules with ``for`` and ``keep_firing_for`` of this many seconds. Windows and thresholds stay."""
    return re.sub(r"(?m)^( +(?:keep_firing_)?for:) .+$", rf"\1 {round(seconds * 1000)}ms", rules)


class Prometheus:
    """The process and its HTTP API."""

    def __init__(self, port: int, every: float) -> None:
        """Prepare a Prometheus that scrapes and evaluates rules every ``every`` seconds, with the same ``for``."""
        self.address = f"127.0.0.1:{port}"
        self._every = every
        self._root = Path(tempfile.mkdtemp(prefix="autoclave-prometheus-"))
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, node: TrialNode) -> None:
        """Return when Prometheus has scraped both programs of the node."""
        self._configure(node)
        with (self._root / "log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(PROGRAM, f"--config.file={self._root / 'prometheus.yaml'}"),
                *(f"--storage.tsdb.path={self._root / 'data'}", f"--web.listen-address={self.address}"),
                *("--enable-feature=exemplar-storage", "--log.level=warn"),
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        ends = asyncio.get_running_loop().time() + STARTS_WITHIN
        while not await asyncio.to_thread(self._has_scraped):
            if self._process.returncode is not None or asyncio.get_running_loop().time() > ends:
                words = (self._root / "log").read_text().strip().splitlines()[-1:] or ["no output"]
                raise FatalError(f"Prometheus does not start; its last log line: {words[0]}")
            await asyncio.sleep(POLL)

    async def clear_away(self) -> None:
        """End the process and remove its files."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), ENDS_WITHIN)
            except TimeoutError:
                process.kill()
                await process.wait()
        shutil.rmtree(self._root)

    def ask(self, path: str, **values: str | float) -> Any:  # noqa: ANN401 - each answer has a shape of its own
        """The answer of its HTTP API. A rejected query raises ValueError with the message of Prometheus."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(values)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(json.load(error)["error"]) from None

    def firing(self) -> set[str]:
        """The alerts that fire now."""
        return {
            alert["metric"]["alertname"] for alert in self.ask("query", query='ALERTS{alertstate="firing"}')["result"]
        }

    def _configure(self, node: TrialNode) -> None:
        for name in RULES:
            text = (resources.files("dashboards") / name).read_text(encoding="utf-8")
            (self._root / name).write_text(with_short_times(text, self._every), encoding="utf-8")
        often = f"{round(self._every * 1000)}ms"
        config = {
            "global": {"scrape_interval": often, "scrape_timeout": often, "evaluation_interval": often},
            "rule_files": list(RULES),
            "scrape_configs": list(_jobs(node)),
        }
        (self._root / "prometheus.yaml").write_text(json.dumps(config, indent=2), encoding="utf-8")

    def _has_scraped(self) -> bool:
        try:
            return len(self.ask("query", query="up == 1")["result"]) == len(JOBS)
        except (OSError, ValueError):
            return False


def _jobs(node: TrialNode) -> Iterator[dict[str, Any]]:
    labels = {"node": NAME, "cluster": CLUSTER}
    for job, address in zip(JOBS, (node.service, node.plugin), strict=True):
        yield {"job_name": job, "static_configs": [{"targets": [address], "labels": labels}]}
