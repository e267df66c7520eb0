"""A Prometheus of the trial's own: on the loopback, with the shipped rules, and gone afterwards."""

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

from dashboards.trial.node import CLUSTER, NAME, TrialNode
from scrubber.ground.errors import FatalError

PROGRAM = "prometheus"
JOBS = ("autoclave-scrubber", "autoclave-plugin")
RULES = ("rules.yaml", "alerts.yaml")
STARTS_WITHIN, ENDS_WITHIN = 30.0, 10.0  # seconds
GLANCE = 0.05  # seconds between two looks whether it is ready: it cannot be waited for


def installed() -> bool:
    """Whether there is one on this machine."""
    return shutil.which(PROGRAM) is not None


def impatient(rules: str, seconds: float) -> str:
    """The same rules, but whatever is true for so long is told, and no longer. Windows and thresholds stay."""
    return re.sub(r"(?m)^( +(?:keep_firing_)?for:) .+$", rf"\1 {round(seconds * 1000)}ms", rules)


class Prometheus:
    """The process, and what can be asked of it."""

    def __init__(self, port: int, every: float) -> None:
        """Look at the node each ``every`` seconds, at the rules as well; an alert must be true for as long."""
        self.address = f"127.0.0.1:{port}"
        self._every = every
        self._root = Path(tempfile.mkdtemp(prefix="autoclave-prometheus-"))
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, node: TrialNode) -> None:
        """Return when it answers, and has heard both programs of the node."""
        self._configure(node)
        with (self._root / "log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(PROGRAM, f"--config.file={self._root / 'prometheus.yaml'}"),
                *(f"--storage.tsdb.path={self._root / 'data'}", f"--web.listen-address={self.address}"),
                *("--enable-feature=exemplar-storage", "--log.level=warn"),
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        ends = asyncio.get_running_loop().time() + STARTS_WITHIN
        while not await asyncio.to_thread(self._hears):
            if self._process.returncode is not None or asyncio.get_running_loop().time() > ends:
                words = (self._root / "log").read_text().strip().splitlines()[-1:] or ["it said nothing"]
                raise FatalError(f"Prometheus does not start; its last words: {words[0]}")
            await asyncio.sleep(GLANCE)

    async def clear_away(self) -> None:
        """End it, and leave nothing behind."""
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
        """What its HTTP API answers; a ValueError with its words when it takes the question for a wrong one."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(values)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(json.load(error)["error"]) from None

    def firing(self) -> set[str]:
        """The alerts that fire now."""
        return {it["metric"]["alertname"] for it in self.ask("query", query='ALERTS{alertstate="firing"}')["result"]}

    def _configure(self, node: TrialNode) -> None:
        for name in RULES:
            text = (resources.files("dashboards") / name).read_text(encoding="utf-8")
            (self._root / name).write_text(impatient(text, self._every), encoding="utf-8")
        often = f"{round(self._every * 1000)}ms"
        config = {
            "global": {"scrape_interval": often, "scrape_timeout": often, "evaluation_interval": often},
            "rule_files": list(RULES),
            "scrape_configs": list(_jobs(node)),
        }
        (self._root / "prometheus.yaml").write_text(json.dumps(config, indent=2), encoding="utf-8")

    def _hears(self) -> bool:
        try:
            return len(self.ask("query", query="up == 1")["result"]) == len(JOBS)
        except (OSError, ValueError):
            return False


def _jobs(node: TrialNode) -> Iterator[dict[str, Any]]:
    labels = {"node": NAME, "cluster": CLUSTER}
    for job, address in zip(JOBS, (node.service, node.plugin), strict=True):
        yield {"job_name": job, "static_configs": [{"targets": [address], "labels": labels}]}
