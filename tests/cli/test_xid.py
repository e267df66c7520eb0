"""``autoclave xid``: what a code is, who does what on it, and whose policy was asked."""

import json
import re
import socket

import pytest
from ruamel.yaml import YAML

from policies import load
from policies.xids import ROWS
from tests.live import Service

RULES = """\
name: mine
defaults: {quarantine: {xids: {codes: {63: quarantine}}}}
rules:
  - name: slices
    match: {mig: true}
    policy: {quarantine: {xids: {preset: gke, unknown: count, codes: {94: quarantine}}}}
"""


@pytest.fixture
def offline(autoclave, tmp_path):
    """The verb where no service runs."""
    return lambda *args: autoclave("xid", *args, AUTOCLAVE_RUN_DIR=str(tmp_path))


@pytest.fixture
def mine(tmp_path):
    """A policy of one's own, with a rule."""
    path = tmp_path / "mine.yaml"
    path.write_text(RULES)
    return path


def said(run):
    """The pairs of the story, by name."""
    assert run.exit_code == 0, run.output
    assert run.stderr == ""
    _, *lines = run.stdout.splitlines()
    return dict(re.split(" {2,}", line, maxsplit=1) for line in lines)


def test_a_named_policy_is_asked_rule_by_rule(offline, mine):
    document = said(offline(63, "--policy", mine))
    assert document["under rule defaults"] == "quarantine"
    assert document["under rule slices"] == "quarantine"
    assert document["policy"] == f"mine, as named: {mine}"
    document = said(offline(999, "--policy", mine))
    assert (document["under rule defaults"], document["under rule slices"]) == (
        "quarantine",
        "count, and quarantine at 5 within 10m",
    )
    assert said(offline(94, "--policy", mine))["under rule defaults"] == "count"


def test_after_a_quarantine_a_person_waits_for_the_test(offline, tmp_path):
    restart = "drain and restart the node, or the virtual machine that has the GPU"
    tested = "in quarantine, wait for Autoclave's test of the GPU, with a reset; if it fails, "
    assert said(offline(79))["to do"] == tested + restart
    counts = tmp_path / "counts.yaml"
    counts.write_text("name: counts\ndefaults: {quarantine: {xids: {codes: {79: count}}}}\n")
    assert said(offline(79, "--policy", counts))["to do"] == restart


def test_a_document_holds_everything(offline, mine):
    document = json.loads(offline(63, "--policy", mine, "-o", "json").stdout)
    assert document == {
        "apiVersion": "autoclave/v1",
        "kind": "Xid",
        "code": 63,
        "known": True,
        "mnemonic": "INFOROM_DRAM_RETIREMENT_EVENT",
        "description": "Faulty memory row or page recorded for replacement",
        "scope": "gpu",
        "action": "ignore",
        "application": False,
        "remedy": "nothing",
        "presets": {"catalog": "count", "nvidia-plugin": "quarantine", "gke": "count"},
        "policy": {
            "name": "mine",
            "origin": f"as named: {mine}",
            "rules": [
                {"rule": "defaults", "treatment": "quarantine", "repeats": None},
                {"rule": "slices", "treatment": "quarantine", "repeats": None},
            ],
        },
    }
    assert YAML(typ="safe", pure=True).load(offline(63, "--policy", mine, "-o", "yaml").stdout) == document


def test_json_about_an_unknown_xid_has_all_fields(offline):
    unknown, known = (json.loads(offline(code, "-o", "json").stdout) for code in (999, 63))
    assert set(unknown) == set(known)
    assert (unknown["known"], unknown["mnemonic"], unknown["action"]) == (False, "", "")
    assert unknown["policy"]["rules"][0]["repeats"] == {"count": 5, "within": 600.0}


def test_without_a_code_all_are_listed(offline, mine):
    head, *lines = offline("--policy", mine).stdout.splitlines()
    assert head.split() == ["CODE", "POLICY", "ASKS", "MEANING"]
    assert [int(line.split()[0]) for line in lines] == list(ROWS)
    assert lines[78].split()[1:5] == ["by-rule", "restart_vm_or_node", "GPU", "no"]
    assert lines[47].split()[1:3] == ["quarantine", "reset_gpu"]


def test_the_list_is_a_document_too(offline):
    document = json.loads(offline("-o", "json").stdout)
    assert document["kind"] == "XidList"
    assert [item["code"] for item in document["items"]] == list(ROWS)


def test_codes_are_completed(autoclave):
    run = autoclave(_AUTOCLAVE_COMPLETE="bash_complete", COMP_WORDS="autoclave xid 17", COMP_CWORD="2")
    assert run.stdout.split() == ["plain,17", "plain,170", "plain,171", "plain,172"]


@pytest.fixture
def running(short_tmp, mine):
    """A service under that policy."""
    service = Service(short_tmp, 1, "--policy", mine)
    yield service
    service.stop()


def test_the_policy_comes_from_the_running_service(autoclave, running, mine, monkeypatch):
    """Whatever it calls itself: a copy of a shipped one keeps its name. The service may see other files than we do."""
    asked = ("xid", 79, "--run-dir", running.run_dir)
    document = said(autoclave(*asked))
    assert document["policy"] == f"mine, in force here, read from {mine}"
    assert document["under rule defaults"] == said(autoclave("xid", 79, "--policy", mine))["under rule defaults"]
    other = load.load(str(mine)).model_copy(update={"name": "yours"})
    with monkeypatch.context() as here:
        here.setattr(load, "load", lambda _source: other)
        document = said(autoclave(*asked))
    assert document["policy"] == f"mine, in force here; {mine} is yours as seen from here: see --policy"
    assert not [name for name in document if name.startswith("under rule")]
    mine.unlink()
    assert "cannot be read now: see --policy" in said(autoclave(*asked))["policy"]


def test_a_silent_service_does_not_delay_an_xid_lookup(autoclave, short_tmp, monkeypatch):
    monkeypatch.setattr("autoclave.cli.verbs.xid.PATIENCE", 0.1)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(short_tmp / "admin.sock"))
        silent.listen()
        document = said(autoclave("xid", 79, "--run-dir", short_tmp))
    assert document["policy"].endswith(f"as no service answers in {short_tmp}")
