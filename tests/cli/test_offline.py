"""Verbs that need no service: ledger, policy, completion, and drills on a directory."""

import json
import os
import re
import signal
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from autoclave import cli
from autoclave.cli import service_call
from ground import paths
from policies import load, policy_model
from policies.values import FenceMode
from scrubber.core import events
from scrubber.core.events import LedgerEntry
from scrubber.core.model import AilmentKind, DeviceInfo, Incarnation, Moment, Sign
from scrubber.devices.simulated import drills, layout, open_check
from scrubber.ledger import opening
from scrubber.policy import ActivePolicy, digest_of


@pytest.fixture
def state(tmp_path):
    """A state directory with a ledger of three rows."""
    at = Moment(1_800_000_000.0, 5.0)
    device = DeviceInfo("GPU-1", 0, "Simulated GPU", 4096)
    found = events.Discovered(device, Incarnation("boot", "driver"))
    opened, _ = opening.open_or_set_aside(tmp_path / "ledger.db", at)
    opened.append(
        [LedgerEntry(0, "GPU-1", at, "op1", found), LedgerEntry(0, "GPU-1", at, "op2", events.Described(device))]
    )
    opened.close()
    return tmp_path


def test_a_flipped_byte_is_found_and_its_row_is_named(autoclave, state):
    with sqlite3.connect(state / "ledger.db") as connection:
        name = connection.execute("SELECT name FROM sqlite_schema WHERE sql LIKE '%salt%'").fetchone()[0]
        connection.execute(f"UPDATE {name} SET body = replace(body, 'Simulated', 'Simulatee') WHERE seq = 2")  # noqa: S608 - our own schema's name
    connection.close()
    run = autoclave("ledger", "verify", "--state-dir", state)
    assert (run.exit_code, run.stdout) == (1, "")
    assert f" {state}/ledger.db: row 2 " in run.stderr
    assert run.stderr.endswith("; before it, 1 row is intact, the last is 1\n")
    document = json.loads(autoclave("ledger", "verify", "-o", "json", "--state-dir", state).stdout)
    assert document["broken"]["seq"] == 2


def test_an_export_is_a_line_of_json_for_every_row(autoclave, state):
    run = autoclave("ledger", "export", AUTOCLAVE_STATE_DIR=str(state))
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    assert [row["seq"] for row in rows] == [1, 2, 3]
    assert rows[1]["body"]["device"]["model"] == "Simulated GPU"


@pytest.mark.parametrize("verb", ["export", "verify"])
def test_a_ledger_that_cannot_be_opened_is_one_sentence(autoclave, tmp_path, verb):
    run = autoclave("ledger", verb, tmp_path / ("x" * 300))  # as root sees an error of the kernel
    assert (run.exit_code, run.stdout, run.stderr.count("\n")) == (1, "", 1)
    assert "File name too long" in run.stderr


def test_a_damaged_ledger_in_a_list_is_named_with_advice(autoclave, state):
    (state / "ledger.db.head").unlink()
    run = autoclave("receipt", "list", "--file", state / "ledger.db")
    assert run.exit_code == 1
    assert f" {state}/ledger.db: cannot verify" in run.stderr
    assert f"`autoclave ledger export {state}/ledger.db`" in run.stderr


def test_a_ledger_that_was_set_aside_is_mentioned(autoclave, state):
    (state / "ledger.db.corrupt-1").touch()
    run = autoclave("ledger", "verify", "--state-dir", state)
    assert run.exit_code == 0
    assert "a damaged ledger was set aside before" in run.stderr


@pytest.mark.parametrize(
    ("text", "code", "shown"),
    [
        (b"name: mine\n", 0, "stdin: policy mine is valid, 0 rules\n"),
        (b"name: mine\nrulez: []\n", 2, "stdin:2:1: rulez: found an unknown key"),
        (b"name: \xff\n", 2, "stdin:1:7: found the byte 0xff"),
        (b"#" * (load.LARGEST + 1), 2, "stdin:1:1: found a larger file"),
    ],
)
def test_a_policy_is_checked_as_it_comes_through_a_pipe(text, code, shown):
    run = CliRunner().invoke(cli.cli, ["policy", "check", "-"], prog_name="autoclave", input=text)
    assert (run.exit_code, shown in run.output) == (code, True)


def test_a_policy_with_warnings_is_valid(autoclave, tmp_path):
    (tmp_path / "p.yaml").write_text("name: mine\ndefaults: {evict: {bystanders: [/opt/monitor]}}\n")
    run = autoclave("policy", "check", tmp_path / "p.yaml")
    assert (run.exit_code, run.stdout) == (0, f"{tmp_path}/p.yaml: policy mine is valid, 0 rules\n")
    place = "defaults.evict.bystanders"
    assert run.stderr.startswith(f"warning: {tmp_path}/p.yaml:2:20: {place} takes the place of the shipped list")
    [item] = json.loads(autoclave("policy", "check", tmp_path / "p.yaml", "-o", "json").stdout)["items"]
    assert (item["valid"], [fault["path"] for fault in item["warnings"]]) == (True, [place])


OF_A_SITE = """\
name: ours
defaults: {quarantine: {xids: {codes: {94: count}}}, evict: {bystanders: [/opt/monitor]}}
rules: [{name: lab, match: {gpu: [0]}, policy: {fence: {lease: 90s}}}]
"""


def test_the_policy_of_a_file_is_shown_with_all_defaults(autoclave, tmp_path):
    (file := tmp_path / "ours.yaml").write_text(OF_A_SITE)
    run = autoclave("policy", "show", file)
    assert (run.exit_code, "defaults.evict.bystanders takes the place of" in run.stderr) == (0, True)
    assert load.load_text(run.stdout, "shown") == load.load(str(file))
    shown = YAML(typ="safe", pure=True).load(run.stdout)
    for policy, lease in ((shown["defaults"], "10m"), (shown["rules"][0]["policy"], "90s")):
        assert (policy["fence"]["lease"], policy["clear"]["passes"]) == (lease, "random+zero")
    file.write_text("name: ours\ndefaults: {mode: perhaps}\n")
    refused = autoclave("policy", "show", file)
    assert (refused.exit_code, refused.stdout, "ours.yaml:2:18: defaults.mode" in refused.stderr) == (2, "", True)


def test_policy_faults_are_reported_with_their_place(autoclave, tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("name: mine\nrulez: []\ndefaults:\n  budgets:\n    allocate: 5\n")
    checked = autoclave("policy", "check", bad, "default", "-o", "json")
    wrong, right = json.loads(checked.stdout)["items"]
    assert (checked.exit_code, wrong["valid"], right["valid"], right["name"]) == (2, False, True, "default")
    assert [(fault["line"], fault["path"]) for fault in wrong["faults"]] == [
        (2, "rulez"),
        (5, "defaults.budgets.allocate"),
    ]


def test_a_shipped_policy_is_shown_with_its_comments(autoclave):
    assert autoclave("policy", "show", "strict").stdout == load.read_shipped("strict")


def test_what_a_receipt_names_by_a_digest_is_shown(autoclave, tmp_path):
    """On the node those of its policies, after they were replaced too; elsewhere those of shipped ones."""
    file, state = tmp_path / "policy.yaml", tmp_path / "state"
    state.mkdir(mode=0o700)
    file.write_text("name: mine\nrules: [{name: all, match: {}, policy: {clear: {passes: random}}}]\n")
    active = ActivePolicy(str(file), paths.last_policy(state), exempt_units=("telegraf.service",))
    active.keep()
    first = active.digest
    exempt = policy_model.digest(active.defaults.exempt_names(["telegraf.service"]))
    digest = load.load(str(file)).rules[0].policy.proof_digest
    file.write_text("name: mine\n")
    active.reload()
    active.keep()
    shown = autoclave("policy", "show", "--digest", digest, "--state-dir", state)
    assert json.loads(shown.stdout)["clear"]["passes"] == "random"
    named = autoclave("policy", "show", "--digest", exempt, "--state-dir", state).stdout.splitlines()
    assert {"unit telegraf.service", "namespace gpu-operator"} < set(named)
    assert json.loads(autoclave("policy", "show", "--digest", active.defaults.proof_digest).stdout)["paths"]
    whole = autoclave("policy", "show", "--digest", first, "--state-dir", state)
    assert json.loads(whole.stdout)["rules"][0]["policy"]["clear"]["passes"] == "random"
    watching = digest_of(load.load("strict").fenced(FenceMode.WATCH))
    assert json.loads(autoclave("policy", "show", "--digest", watching).stdout)["name"] == "strict"
    kept = paths.proof_settings(state, digest)
    kept.write_text(kept.read_text().replace("random", "zero"))
    changed = autoclave("policy", "show", "--digest", digest, "--state-dir", state)
    assert (changed.exit_code, digest in changed.stderr) == (2, True)
    assert autoclave("policy", "show", "fast", "--digest", digest).exit_code == 2


def test_the_schema_is_json(autoclave):
    assert "rules" in json.loads(autoclave("policy", "schema").stdout)["properties"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_asks_autoclave(autoclave, shell):
    run = autoclave("completion", shell)
    assert run.exit_code == 0
    assert f"_AUTOCLAVE_COMPLETE={shell}_complete" in run.stdout
    assert run.stderr == ""


def complete(autoclave, line):
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - (not line.endswith(" ")))}
    return autoclave(_AUTOCLAVE_COMPLETE="bash_complete", **words).stdout.split()


def test_verbs_flags_and_policy_names_are_completed(autoclave):
    assert complete(autoclave, "autoclave qua") == ["plain,quarantine"]
    assert "plain,--watch" in complete(autoclave, "autoclave status --")
    for words in ("policy show str", "policy check str", "xid 79 --policy str", "scrubber --policy str"):
        assert complete(autoclave, f"autoclave {words}") == ["file,str", "plain,strict"]
    assert complete(autoclave, "autoclave history --kind scrub-") == [
        f"plain,scrub-{how}" for how in ("started", "passed", "failed", "interrupted")
    ]


def test_completing_a_gpu_without_a_service_is_silent(autoclave, tmp_path):
    run = autoclave(
        _AUTOCLAVE_COMPLETE="bash_complete", COMP_WORDS=f"autoclave scrub --run-dir {tmp_path} ", COMP_CWORD="4"
    )
    assert run.output.strip() == ""


@pytest.fixture
def gpus(tmp_path):
    """Two simulated GPUs without a service."""
    layout.create(tmp_path, 2, 2**20)
    return tmp_path


def drill(autoclave, gpus, *args):
    run = autoclave("simulate", *args, AUTOCLAVE_SIMULATED_DIR=str(gpus))
    assert run.exit_code == 0, run.output
    return run.stdout


FAULTS: list[tuple[str, dict[str, object]]] = [
    ("lost", {"lost": True}),
    ("hang", {"hang": True}),
    ("stall-clears", {"stall_clears": True}),
    ("skip-clears", {"skip_clears": True}),
    ("skip-scratch", {"skip_scratch": True}),
    ("bad-compute", {"bad_units": (0,)}),
    ("bad-compute --unit 7", {"bad_units": (7,)}),
    ("sign links --detail down", {"signs": (Sign(AilmentKind.LINKS, "down"),)}),
    ("reset-fails", {"reset": layout.Resetting.FAILS}),
    ("reset-fails --how slow --duration 2m", {"reset_seconds": 120.0}),
    ("bad-memory --offset 4KiB --bit 3", {"stuck_bits": (layout.StuckBit(4096, 3),)}),
]


@pytest.mark.parametrize(("words", "changed"), FAULTS, ids=[words for words, _ in FAULTS])
def test_a_drill_breaks_one_gpu_until_heal(autoclave, gpus, words, changed):
    name, *flags = words.split()
    drill(autoclave, gpus, name, "0", *flags)
    place, other = layout.places(gpus)
    broken = layout.read(place.faults, layout.Faults)
    assert {name: getattr(broken, name) for name in changed} == changed
    assert layout.read(other.faults, layout.Faults) == layout.Faults()
    drill(autoclave, gpus, "heal", "0")
    assert layout.read(place.faults, layout.Faults) == layout.Faults()


@pytest.mark.parametrize(
    ("words", "file", "expected"),
    [
        ("ecc --count 3", "counters", layout.Counters(ecc_uncorrectable=3)),
        ("remap", "counters", layout.Counters(remap_pending=True)),
        ("remap --failed", "counters", layout.Counters(remap_failed=True)),
        ("leak --size 2MiB", "counters", layout.Counters(leaked_bytes=2 * 2**20)),
        ("heat --celsius 97", "readings", layout.Measured(celsius=97.0)),
    ],
)
def test_a_drill_changes_what_a_device_would_report(autoclave, gpus, words, file, expected):
    name, *flags = words.split()
    drill(autoclave, gpus, name, "1", *flags)
    same, changed = (layout.read(getattr(place, file), type(expected)) for place in layout.places(gpus))
    assert (same, changed) == (type(expected)(), expected)


def test_a_hot_gpu_is_hot_until_it_is_healed(autoclave, gpus):
    drill(autoclave, gpus, "heat", "1", "--celsius", "97")
    drill(autoclave, gpus, "heal", "1")
    assert layout.read(layout.places(gpus)[1].readings, layout.Measured) == layout.Measured()


def test_an_xid_and_a_setting_are_left_in_their_files(autoclave, gpus):
    drill(autoclave, gpus, "xid", "1", "79")
    assert re.fullmatch(r"79 \d+\.\d+\n", layout.places(gpus)[1].events.read_text())
    drill(autoclave, gpus, "drift", "1", "--watts", "99")
    assert layout.read(layout.places(gpus)[1].settings, layout.SimulatedSettings).power_limit_watts == 99


def test_occupy_writes_a_secret_and_release_ends_it(autoclave, gpus):
    uuid = layout.places(gpus)[0].info().uuid
    shown = drill(autoclave, gpus, "occupy", uuid, "--secret", "hush", "--container", "pod-7")
    pid = int(shown.split()[3])
    assert drills.scan(gpus, uuid, b"hush") == 3
    assert drill(autoclave, gpus, "release", "0") == f"GPU 0: ended {pid}\n"
    assert open_check.is_open([str(layout.find(gpus, uuid).memory)]) is False


def test_a_leftover_stays_until_it_is_killed(autoclave, gpus):
    pid = int(drill(autoclave, gpus, "zombie", "0").split()[3])
    os.kill(pid, signal.SIGTERM)
    assert Path(f"/proc/{pid}").exists()
    os.kill(pid, signal.SIGKILL)


def test_the_requester_is_named_with_its_real_uid(monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert service_call.caller() == "user root (uid 0)"
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999)
    assert service_call.caller() == "uid 3999999"
