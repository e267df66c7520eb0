"""What the verbs say, word for word. ``make golden`` writes the words again, and nothing else."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from plugin import plugin_process
from scrubber import daemon
from scrubber.devices.simulated import layout
from tests.cli.transcripts import FILES, Stage, by_hand
from tests.live import Service


@pytest.fixture
def play(autoclave, short_tmp: Path, monkeypatch: pytest.MonkeyPatch):
    """Plays a file, whose first line says how many GPUs it has. No program stays, whatever its flags."""
    for program in (daemon, plugin_process):
        monkeypatch.setattr(program, "run", lambda _: None)
    with ExitStack() as ending:

        def play(file: str) -> str:
            places = {name: str(short_tmp / name.lower()) for name in ("RUN", "STATE", "KUBELET")}
            words = {"AUTOCLAVE_SERVICE_WAIT": "0s", "AUTOCLAVE_HOST_ROOT": places["STATE"]} | {
                f"AUTOCLAVE_{name}_DIR": it for name, it in places.items()
            }
            head, service = file.partition("\n")[0], None
            gpus = int(count[1]) if (count := re.search(r"(\d+) GPUs?\b", head)) else 0
            if gpus and "without a service" in head:
                layout.create(short_tmp / "gpus", gpus, 2**20)
                words["AUTOCLAVE_SIMULATED_DIR"] = str(short_tmp / "gpus")
            elif gpus:
                service = Service(short_tmp, gpus)
                ending.callback(service.stop)
                for number in range(gpus):
                    service.settled(number, "clean")
            uuids = {f"UUID-{it.info().index}": it.info().uuid for it in layout.places(short_tmp / "gpus")}
            return Stage(short_tmp, lambda *args, **env: autoclave(*args, **words | env), uuids, service).play(file)

        yield play


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_a_verb_says_what_its_file_says(play, file: Path, request: pytest.FixtureRequest) -> None:
    text = file.read_text()
    said = play(text)
    if request.config.getoption("--golden"):
        assert by_hand(said) == by_hand(text), "people write the exit codes, and on which stream a command speaks"
        file.write_text(said)
    else:
        assert said == text
