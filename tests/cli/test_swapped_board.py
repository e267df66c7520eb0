"""A board was swapped: its index means the new one, and each sentence names the right GPU."""

from __future__ import annotations

import json
from pathlib import Path

from tests.live import Service


def test_an_index_means_the_new_board_in_every_verb(short_tmp: Path, autoclave) -> None:
    service = Service(short_tmp, 1)
    try:
        old = service.settled(0, "clean").device
        service.stop()
        new = f"GPU-30c{old[7:]}"
        file = service.simulated_dir / "gpu0/device.json"
        file.write_text(file.read_text().replace(old, new))
        service.start()
        assert service.settled(old, "quarantined").quarantine.reason == "lost"
        assert service.settled(0, "clean").device == new
        run = {"AUTOCLAVE_RUN_DIR": str(service.run_dir), "AUTOCLAVE_STATE_DIR": str(short_tmp / "state")}
        places = ("--kubelet-dir", short_tmp, "--host-root", short_tmp)
        sentence = f"another GPU had the index 0 at another time: `autoclave explain {old}` is about that one"
        story = autoclave("explain", "0", **run).stdout
        assert story.startswith(f"GPU 0  {new}  ")
        assert f"\nadvice  {sentence}\n" in story
        assert sentence not in autoclave("explain", new, **run).stdout
        [row] = json.loads(autoclave("status", "0", "-o", "json", **run).stdout)["items"]
        assert row["device"] == new
        assert {
            row["device"] for row in json.loads(autoclave("history", "0", "-o", "json", **run).stdout)["items"]
        } == {new}
        assert f"`autoclave explain {old}` says" in autoclave("doctor", "--only", "device", *places, **run).stdout
        assert f"; `autoclave explain {old}` shows" in autoclave("wait", old, "--timeout", "0s", **run).stderr
        refused = autoclave("scrub", old, **run)
        assert f"cannot scrub GPU {old}: it is quarantined (lost: " in refused.stderr
        words = f"autoclave explain --run-dir {service.run_dir} "
        offered = autoclave(_AUTOCLAVE_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD="4").stdout.split()
        assert offered == [f"plain,{name}" for name in (old, "0", new)]
        service.stop()
        story = autoclave("explain", "0", **run).stdout  # from the ledger's file
        assert (story.startswith(f"GPU 0  {new}  "), sentence in story) == (True, True)
    finally:
        if service.process.poll() is None:
            service.kill()
