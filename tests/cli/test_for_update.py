"""``autoclave doctor --for-update``: what an update changes, read from the state of the older version."""

import json
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ground import boot, paths
from scrubber.ledger import database, reading
from scrubber.ledger.ledger_files import LedgerPaths
from tests import older_states

STATES = {int(older_states.name(path).partition("-")[0]): path for path in older_states.OF_ONE_STORY}
NEWEST = max(STATES)


def boot_of(place: Path) -> str:
    """The boot of the node that left the state."""
    [booted] = {it.incarnation.boot_id for it in reading.read(paths.ledger(place)).records.values()}
    return booted


@pytest.fixture
def state(tmp_path: Path, monkeypatch):
    """The directory with a state of this format of the ledger, in the boot of its node."""

    def unpacked(number: int) -> Path:
        place = tmp_path / "state"
        older_states.unpack(STATES[number], place)
        booted = boot_of(place)
        monkeypatch.setattr(boot, "boot_id", lambda: booted)
        monkeypatch.setattr(boot, "uptime", lambda: 0.0)  # no test of a GPU is due
        return place

    return unpacked


@pytest.fixture
def examine(autoclave):
    """The exit code, and the findings as (level, name, text, remedy)."""

    def run(place: Path, *flags: object) -> tuple[int, list[tuple[str, ...]]]:
        done = autoclave("doctor", "--for-update", place, "-o", "json", *flags)
        found = json.loads(done.stdout)["findings"]
        return done.exit_code, [(it["level"], it["name"], it["text"], it["remedy"]) for it in found]

    return run


def texts(found, name, level=None):
    return [text for how, check, text, _ in found if check == name and level in {None, how}]


def content(place):
    """All that is written, but for SQLite's index of the log, in which each reader says that it reads."""
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file() and path.suffix != ".db-shm"}


@pytest.mark.parametrize("number", STATES)
def test_each_older_state_is_reported_and_left_alone(state, examine, number):
    place = state(number)
    before = content(place)
    code, found = examine(place)
    assert code == 0
    (_, _, text, remedy), *more = [it for it in found if it[1] == "ledger"]
    assert f"of format {number} is taken over as format {database.VERSION}" in text
    assert str(place) in remedy
    above = " and the sections above it" if number < database.VERSION - 1 else ""
    assert f"; read the section from format {number}{above} in docs/upgrading.md: " in remedy
    assert ["300 MiB" in text for _, _, text, _ in more] == [True] * (number < 8)
    held, by_xid = texts(found, "quarantine")
    assert re.fullmatch(
        r"GPU 1 \(GPU-\S+\) stays quarantined until an operator reinstates it: operator: its riser is loose", held
    )
    assert "xid 79" in by_xid
    [owned] = texts(found, "owner")
    assert re.match(r"GPU 2 \(GPU-\S+\) stays with job 7 if the run directory stays,", owned)
    assert [it.partition(":")[0] for it in texts(found, "scrub")] == ["GPU 0", "GPU 3, 5"]
    assert content(place) == before


def test_the_file_of_a_ledger_will_do(state, examine):
    place = state(NEWEST)
    code, found = examine(place)
    assert examine(paths.ledger(place)) == (code, [it for it in found if it[1] != "disk"])


@pytest.mark.parametrize(
    ("policy", "why", "level"),
    [
        ("default", "the proof ends with the old service", "ok"),
        ("strict", "the policy demands another proof", "warning"),
        ("observe", None, None),
    ],
)
def test_a_scrub_of_a_clean_gpu_has_its_reason(state, examine, policy, why, level):
    _, found = examine(state(NEWEST), "--policy", policy)
    clean = [(text, how) for how, name, text, _ in found if name == "scrub" and text.startswith("GPU 3, 5:")]
    assert [(why in text, how) for text, how in clean] == ([(True, level)] if why else [])


def test_no_owner_and_no_proof_outlives_a_boot(state, examine, monkeypatch):
    place = state(NEWEST)
    monkeypatch.setattr(boot, "boot_id", lambda: "another")
    _, found = examine(place)
    assert [" was with job 7 in another boot" in text for text in texts(found, "owner")] == [True]
    assert "GPU 2, 3, 5: a scrub follows the update, because the ledger is of another boot" in str(found)


@pytest.mark.parametrize(
    ("number", "policy", "says"),
    [
        (3, "strict", "refuses from this update on .* Before, under the policy default, nobody was kept off$"),
        (6, "strict", "refuses from this update on .* Before, under the policy default, nobody was kept off$"),
        (8, "strict", "refuses from this update on .* Before, under the policy default, pods were held$"),
        (3, "default", "holds pods from this update on .*nobody was kept off$"),
        (6, "default", "holds pods from this update on .*nobody was kept off$"),
        (8, "default", None),
        (6, "observe", None),
        (8, "observe", "only watches from this update on.*under the policy default, pods were held$"),
    ],
)
def test_who_is_kept_off_from_now_on_is_said(state, examine, number, policy, says):
    _, found = examine(state(number), "--policy", policy)
    assert [bool(re.search(says, text)) for text in texts(found, "fence", "warning")] == ([True] if says else [])
    assert len(texts(found, "fence")) == 1


def test_a_stricter_fence_comes_after_the_one_of_before(state, examine):
    for number, mode in ((6, "watch"), (8, "hold")):
        [remedy] = [it[3] for it in examine(state(number), "--policy", "strict")[1] if it[1] == "fence"]
        assert f"(policy.fence={mode} of the chart) first" in remedy


REFUSES = "name: mine\ndefaults: {fence: {mode: refuse}}\n"
UNREADABLE = REFUSES.replace("refuse", "rfuse")


@pytest.mark.parametrize(
    ("number", "last", "values", "says"),
    [
        (6, None, "policy: {shipped: strict}", "strict refuses from this update on .*default, nobody was kept off$"),
        (8, None, "policy: {fence: watch}", "only watches .*, pods were held, unless policy.fence=watch was in force"),
        (8, None, "policy: {fence: 'off'}", "no fence from this update on.* nobody counts that. .*, pods were held"),
        (8, REFUSES, "policy: {fence: hold}", "holds pods .*policy mine, pods and programs of the host were refused"),
        (8, None, f"policy: {{inline: {json.dumps(REFUSES)}}}", "mine refuses .*policy default, pods were held$"),
        (8, REFUSES, "policy: {shipped: strict}", None),
        (4, REFUSES, "policy: {shipped: strict}", None),
        (3, REFUSES, "policy: {shipped: strict}", "refuses from this update on .*nobody was kept off$"),
        (8, UNREADABLE, "policy: {shipped: fast}", "^it is not known whom the fence kept off a GPU before the update"),
        (3, UNREADABLE, "policy: {shipped: fast}", "holds pods from this update on .*nobody was kept off$"),
    ],
)  # fmt: skip
def test_the_next_fence_is_compared_with_the_last_one(state, examine, tmp_path, number, last, values, says):
    place = state(number)
    if last is not None:
        paths.last_policy(place).write_text(last)
    (tmp_path / "values.yaml").write_text(values)
    _, found = examine(place, "--values", tmp_path / "values.yaml")
    assert [bool(re.search(says, text)) for text in texts(found, "fence", "warning")] == ([True] if says else [])
    assert len(texts(found, "fence")) == 1


def test_a_ledger_of_this_format_promises_no_change(state, examine):
    place = state(NEWEST)
    with closing(sqlite3.connect(paths.ledger(place))) as connection:
        connection.execute(f"PRAGMA user_version = {database.VERSION}")
    _, found = examine(place)
    assert (texts(found, "ledger", "warning"), texts(found, "fence", "warning")) == ([], [])


@pytest.mark.parametrize(("blocks", "level"), [(2_559, "broken"), (25_599, "warning"), (25_600, "ok")])
def test_a_disk_that_is_full_is_said_before_the_update(state, examine, monkeypatch, blocks, level):
    place = state(NEWEST)
    full = os.statvfs_result((4096, 4096, 10**6, blocks, blocks, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    _, found = examine(place)
    [(how, _, text, _)] = [it for it in found if it[1] == "disk"]
    assert (how, f"the ledger in {place} has room for" in text) == (level, True)
    assert texts(examine(paths.ledger(place))[1], "disk") == [], "a copy may lie anywhere"


VALUES = """
createGate: {mode: "on"}
nameOverride: gpus
policy: {shipped: strict, fence: watch}
scrubber: {metricsPort: 9000, extraArgs: [--create-gate, --evidence-rows=9]}
plugin: {extraArgs: [--clean-within=20, --runtime-request-timeout=2m]}
"""


def test_values_that_left_or_stop_a_pod_are_named(state, examine, tmp_path):
    (tmp_path / "values.yaml").write_text(VALUES)
    code, found = examine(state(3), "--values", tmp_path / "values.yaml")
    left, stops = texts(found, "values", "warning"), texts(found, "values", "broken")
    assert code == 1
    assert [text.split()[2] for text in left] == ["createGate.mode", "scrubber.metricsPort"]
    assert [re.findall(r"nameOverride|--[a-z-]+", text)[0] for text in stops] == [
        "nameOverride", "--create-gate", "--runtime-request-timeout",
    ]  # fmt: skip
    assert texts(found, "policy") == ["this version takes the policy strict"]
    assert texts(found, "ledger", "ok") == [], "how much the ledger keeps was chosen"
    assert texts(found, "fence", "warning") == [], "policy.fence replaces what the policy says"


@pytest.mark.parametrize("text", ["", "null\n", "USER-SUPPLIED VALUES:\nbackend: nvidia\n"])
def test_values_as_helm_prints_them_are_read(state, examine, tmp_path, text):
    (tmp_path / "values.yaml").write_text(text)
    code, found = examine(state(NEWEST), "--values", tmp_path / "values.yaml")
    assert (code, texts(found, "values", "broken")) == (0, [])


OLD_FIELDS = "# /etc/p.yaml\nname: mine\ndefaults: {periodic: {every: 1d}, budgets: {start: 20s}}\n"


def test_the_last_policy_of_the_node_is_judged(state, examine):
    place = state(NEWEST)
    paths.last_policy(place).write_text(OLD_FIELDS)
    code, found = examine(place)
    assert (code, len(texts(found, "policy", "warning"))) == (0, 2)
    older = "is a field of an older version and has no effect: to test idle devices, run"
    assert f"/etc/p.yaml:2:12: defaults.periodic {older}" in texts(found, "policy")[0]


def test_a_policy_that_this_version_refuses_is_broken(state, examine, tmp_path):
    (tmp_path / "p.yaml").write_text("name: mine\ndefaults: {paths: {escalate: false}, gate: start}\n")
    code, found = examine(state(NEWEST), "--policy", tmp_path / "p.yaml")
    [text], [also] = texts(found, "policy", "broken"), texts(found, "policy", "warning")
    assert (code, "paths.escalate: found a field of an older version" in text) == (1, True)
    assert "defaults.gate is a field of an older version and has no effect" in also


UNITS = "name: mine\ndefaults: {fence: {mode: refuse, exempt: {units: [telegraf.service]}}}\n"


@pytest.mark.parametrize(
    ("number", "policy", "values", "says"),
    [
        (6, UNITS, "{}", ("telegraf.service costs a scrub", "they replaced them")),
        (6, "name: mine\n", "policy: {exempt: [a.service], fence: watch}", ("by a.service costs", "replaced")),
        (3, "name: mine\n", "policy: {exempt: [a.service], fence: watch}", ("by a.service costs",)),
        (7, UNITS, "{}", ()),
        (3, UNITS, 'policy: {fence: "off"}', ()),
    ],
)
def test_units_that_become_exempt_and_counted_are_said(state, examine, tmp_path, number, policy, values, says):
    place = state(number)
    for file in (paths.last_policy(place), tmp_path / "p.yaml"):
        file.write_text(policy)
    (tmp_path / "values.yaml").write_text(values)
    _, found = examine(place, "--policy", tmp_path / "p.yaml", "--values", tmp_path / "values.yaml")
    warned = texts(found, "fence", "warning")
    assert [all(part in text for part in says) for text in warned] == ([True] if says else [])
    assert bool(texts(found, "fence", "ok")) is not bool(says)


@pytest.mark.parametrize("flags", ["existingConfigMap: gpus", "byNodeLabel: {a: {shipped: fast}}"])
def test_a_policy_that_lies_elsewhere_leaves_the_last_one(state, examine, tmp_path, flags):
    place = state(NEWEST)
    paths.last_policy(place).write_text("name: of-the-node\n")
    (tmp_path / "values.yaml").write_text(f"policy: {{shipped: default, {flags}}}\n")
    _, found = examine(place, "--values", tmp_path / "values.yaml")
    [unread], [taken] = texts(found, "policy", "warning"), texts(found, "policy", "ok")
    assert f"{flags.partition(':')[0]} of the values was not read: the last one of the node is judged" in unread
    assert "this version takes the policy of-the-node" in taken
    _, found = examine(place, "--values", tmp_path / "values.yaml", "--policy", "fast")
    assert texts(found, "policy") == ["this version takes the policy fast"]


def test_a_shipped_policy_that_does_not_exist_is_named(state, examine, tmp_path):
    (tmp_path / "values.yaml").write_text("policy: {shipped: strikt, fence: wtch}\n")
    code, found = examine(state(NEWEST), "--values", tmp_path / "values.yaml")
    refused = "the chart refuses the value policy.{}: {} does not exist (did you mean {}?)".format
    wrong = [refused("shipped", "strikt", "strict"), refused("fence", "wtch", "watch")]
    assert (code, texts(found, "values")) == (1, wrong)
    assert "policy.shipped of the values was not read" in texts(found, "policy", "warning")[0]


NOT_KEPT = "its service does not start, and has kept no other policy: "
KEEPS = "its service keeps the last policy, mine"
INLINE = f"policy: {{inline: {json.dumps(UNREADABLE)}}}"


@pytest.mark.parametrize(
    ("kept", "values", "says"),
    [
        (None, INLINE, NOT_KEPT),
        (REFUSES, INLINE, NOT_KEPT),  # nobody knows of which file
        (f"# /etc/p.yaml\n{UNREADABLE}", "{}", NOT_KEPT),
        (f"# /etc/p.yaml\n{UNREADABLE}", INLINE, "does not start, because it also refuses the last policy, /"),
        (f"# /etc/p.yaml\n{REFUSES}", INLINE, "because its last policy is of another file, /etc/p.yaml: "),
        (f"# /etc/autoclave/policy/policy.yaml\n{REFUSES}", INLINE, f"{KEEPS}: "),
        (f"# /etc/p.yaml\n{REFUSES}", None, f"{KEEPS}, if its policy file is still /etc/p.yaml; it does not start"),
    ],
)
def test_a_refused_policy_says_what_the_service_does(state, examine, tmp_path, kept, values, says):
    place = state(NEWEST)
    if kept is not None:
        paths.last_policy(place).write_text(kept)
    (tmp_path / "p.yaml").write_text(UNREADABLE)
    (tmp_path / "values.yaml").write_text(values or "{}")
    flags = ("--policy", tmp_path / "p.yaml") if values is None else ("--values", tmp_path / "values.yaml")
    code, found = examine(place, *flags)
    [text] = texts(found, "policy", "broken")
    assert (code, says in text) == (1, True)


def test_a_key_of_receipts_that_is_missing_is_named(state, examine):
    place = state(NEWEST)
    assert texts(examine(place)[1], "receipt-key") == []
    (paths.receipt_key(place) / "key.pem").unlink()
    code, found = examine(place)
    [text] = texts(found, "receipt-key", "warning")
    assert (code, text.startswith(f"{paths.receipt_key(place)}/key.pem is missing: ")) == (0, True)
    assert texts(examine(paths.ledger(place))[1], "receipt-key") == [], "a copy may lie anywhere"


def test_a_state_directory_of_others_is_broken(state, examine):
    place = state(NEWEST)
    place.chmod(0o777)
    code, found = examine(place)
    [text] = texts(found, "ledger", "broken")
    assert (code, f"cannot use the state directory {place}: other users may write to it; make it" in text) == (1, True)
    place.chmod(0o700)
    paths.ledger(place).chmod(0o666)
    code, found = examine(place)
    [text] = texts(found, "ledger", "broken")
    assert (code, f"{paths.ledger(place)}: other users may write to it; if it is our file" in text) == (1, True)
    assert text.startswith("the service starts, but hands out no GPU: ")
    paths.ledger(place).chmod(0o600)
    head = LedgerPaths(paths.ledger(place)).head
    head.chmod(0o666)
    [text] = texts(examine(place)[1], "ledger", "broken")
    assert f"{head}: other users may write to it" in text
    code, found = examine(paths.ledger(place))
    assert (code, texts(found, "ledger", "broken")) == (0, []), "a copy may lie anywhere"


def spoil(kind, place, folder):
    """A wrong input, as the flags that name it."""
    match kind:
        case "missing":
            return [folder]
        case "no directory":
            return [folder / "away"]
        case "no access":  # as root sees an error of the kernel
            return [folder / ("x" * 300)]
        case "newer":
            with closing(sqlite3.connect(paths.ledger(place))) as connection:
                connection.execute(f"PRAGMA user_version = {database.VERSION + 1}")
        case "damaged":
            with closing(sqlite3.connect(paths.ledger(place))) as connection:
                connection.execute("UPDATE entries SET body = replace(body, 'riser', 'raiser')")
                connection.commit()
        case "no ledger":
            return [place / "receipt-key/key.pem"]
        case "lost":
            paths.ledger(place).unlink()
        case "no yaml":
            (folder / "values.yaml").write_text("a: [1\n")
            return [place, "--values", folder / "values.yaml"]
        case "no values":
            return [place, "--values", folder / "values.yaml"]
        case "no policy":
            return [place, "--policy", folder / "p.yaml"]
        case flag:
            return [place, flag, "ledger" if flag == "--only" else "1s"]
    return [place]


@pytest.mark.parametrize(
    ("kind", "code", "says"),
    [
        ("missing", 2, "there is no such file; name the state directory"),
        ("no directory", 2, "there is no such file; name the state directory"),
        ("no access", 1, "File name too long"),
        ("newer", 2, "its quarantines and owners are lost"),
        ("damaged", 1, "do not update yet: a start sets its files aside"),
        ("lost", 1, "ledger.db.head exist; do not update yet: a start sets its files aside, and then knows no quarant"),
        ("no ledger", 1, "it is not a ledger"),
        ("no yaml", 2, "it is not YAML"),
        ("no values", 2, "No such file or directory; name the file that Helm gets"),
        ("no policy", 2, "expected a policy file or one of default,"),
        ("--only", 2, "--only does not work with --for-update, which checks once"),
        ("--wait", 2, "--wait does not work with --for-update, which checks once"),
    ],
)
def test_a_wrong_input_is_one_sentence_with_a_remedy(state, autoclave, tmp_path, kind, code, says):
    place = state(NEWEST)
    run = autoclave("doctor", "--for-update", *spoil(kind, place, tmp_path))
    assert (run.exit_code, run.stdout, run.stderr.count("\n")) == (code, "", 1)
    assert says in run.stderr


def test_values_without_a_state_are_wrong_usage(autoclave):
    run = autoclave("doctor", "--values", "values.yaml")
    assert (run.exit_code, "--values is of --for-update" in run.stderr) == (2, True)
