"""The script that writes what NVIDIA's ai-cloud-validation reads, on hand-overs as our own command lists them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoclave.cli import handover_table
from autoclave.cli.handover_table import About
from scrubber.core.tenancies import TenancyRow

SCRIPT = Path(__file__).parents[2] / "docs/receipts/sec21_05.py"
LINE_1 = "line 1 is no hand-over: give the output of `autoclave receipt list -o jsonl`"
PROVEN = {"proven": True, "receipt": "r1"}


def script(file: Path) -> tuple[int, dict[str, Any]]:
    run = subprocess.run([sys.executable, SCRIPT, file, "--site", "lab"], capture_output=True, text=True, check=False)
    return run.returncode, json.loads(run.stdout)


def written(file: Path, capsys, *tenancies: dict[str, Any], simulated: bool = False) -> Path:
    """The list of these tenancies, by the code of `autoclave receipt list -o jsonl`."""
    rows = [
        TenancyRow(device="GPU-1", **{"began": 10.0 * n, "ended": 10.0 * n + 5} | it) for n, it in enumerate(tenancies)
    ]
    about = About(simulated, 0, None, "H100")
    handover_table.show([(row, about) for row in rows], "node-1", "jsonl", since=0.0, until=0.0, host="")
    file.write_text(capsys.readouterr().out)
    return file


@pytest.mark.parametrize(
    ("last", "sanitized", "steps"),
    [
        (PROVEN, True, ["sanitizing", "available", "in_use"]),
        ({"note": "policy observe"}, False, ["available", "in_use"]),
        (PROVEN | {"note": "a container of another pod used it as well"}, False, ["available", "in_use"]),
    ],
    ids=["proven", "unproven", "with a note"],
)
def test_a_gpu_is_sanitized_if_each_handover_was_proven(tmp_path, capsys, last, sanitized, steps) -> None:
    code, answer = script(written(tmp_path / "list", capsys, PROVEN, {**last, "ended": None}))
    assert (code, answer["success"], answer["machines_checked"], answer["site_id"]) == (0, True, 1, "lab")
    [gpu] = answer["machines"]
    assert gpu["transitions"] == ["sanitizing", "available", "in_use", *steps]
    assert (gpu["machine_id"], gpu["status"], gpu["in_use"]) == ("node-1/GPU-1", "in_use", True)
    assert (gpu["has_gpu"], gpu["served_tenant"], gpu["sanitized"]) == (True, True, sanitized)
    assert (gpu["available"], gpu["stale_tenant_binding"]) == (False, False)


def test_a_simulated_gpu_is_called_so_and_never_sanitized(tmp_path, capsys) -> None:
    """Whatever its model is called."""
    code, answer = script(written(tmp_path / "list", capsys, PROVEN, simulated=True))
    [gpu] = answer["machines"]
    assert (code, gpu["simulated"], gpu["sanitized"]) == (6, True, False)
    assert (answer["success"], answer["simulated"]) == (False, 1)
    assert answer["error"] == "1 of 1 GPUs are simulated: the list says nothing about hardware"


def test_a_gpu_with_two_tenants_at_once_is_bound(tmp_path, capsys) -> None:
    _, answer = script(written(tmp_path / "list", capsys, PROVEN | {"ended": None}, PROVEN))
    assert answer["machines"][0]["stale_tenant_binding"] is True


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"no list", f"{LINE_1}"),
        (b"[]", f"{LINE_1}"),
        (b"[" * 100_000, f"{LINE_1}"),
        (b"{}", f"{LINE_1}; its field node is missing, or of another kind"),
        (b"\xff", f"{LINE_1}"),
        (b"", "it has no hand-over"),
        (None, "No such file or directory"),
    ],
)
def test_a_bad_list_is_named_in_one_sentence(tmp_path, content, why) -> None:
    if content is not None:
        (tmp_path / "list").write_bytes(content)
    code, answer = script(tmp_path / "list")
    assert (code, answer["success"], "machines" in answer) == (1, False, False)
    assert answer["error"] == f"cannot read {tmp_path / 'list'}: {why}"


def test_a_list_without_the_word_simulated_is_no_evidence(tmp_path, capsys) -> None:
    """An older command wrote it."""
    file = written(tmp_path / "list", capsys, PROVEN)
    file.write_text(file.read_text().replace('"simulated": false, ', ""))
    code, answer = script(file)
    assert (code, answer["success"], "its field simulated is missing" in answer["error"]) == (1, False, True)
