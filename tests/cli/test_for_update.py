"""``autoclave doctor --for-update``: what an update changes, read from the state of the older version."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from autoclave.doctor.facts import update_facts
from ground import boot, paths
from scrubber.core.model import Moment
from scrubber.ledger import database, ledger_rows, opening, reading
from scrubber.ledger.ledger_files import LedgerPaths
from scrubber.receipts.dsse import announcement
from scrubber.receipts.key import make_next, open_key, read_key
from tests import older_states

CHART_VALUES = Path(__file__).parents[2] / "deploy/helm/autoclave/values.yaml"


def boot_of(place: Path) -> str:
    """The boot of the node that left the state."""
    [booted] = {it.incarnation.boot_id for it in reading.read(paths.ledger(place)).records.values()}
    return booted


@pytest.fixture
def state(tmp_path: Path, monkeypatch):
    """The directory with a state of the format before, in the boot of its node."""
    place = tmp_path / "state"
    older_states.unpack(older_states.ALL[0], place)
    booted = boot_of(place)
    monkeypatch.setattr(boot, "boot_id", lambda: booted)
    monkeypatch.setattr(boot, "uptime", lambda: 0.0)  # no test of a GPU is due
    return place


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


def test_a_state_of_the_format_before_is_only_read(state, examine):
    before = content(state)
    code, found = examine(state)
    assert code == 0
    [(_, _, text, remedy)] = [it for it in found if it[1] == "ledger"]
    assert f"of format {database.VERSION - 1} is taken over as format {database.VERSION}" in text
    assert str(state) in remedy
    assert f"; read the section from format {database.VERSION - 1} in docs/upgrading.md" in remedy
    held, by_xid = texts(found, "quarantine")
    assert re.fullmatch(
        r"GPU 1 \(GPU-\S+\) stays quarantined until an operator reinstates it: operator: its riser is loose", held
    )
    assert "xid 79" in by_xid
    [owned] = texts(found, "owner")
    assert re.match(r"GPU 2 \(GPU-\S+\) stays with job 7 if the run directory stays,", owned)
    assert [it.partition(":")[0] for it in texts(found, "scrub")] == ["GPU 0", "GPU 3, 5"]
    assert content(state) == before


def test_the_file_of_a_ledger_will_do(state, examine):
    place = state
    code, found = examine(place)
    assert examine(paths.ledger(place)) == (code, [it for it in found if it[1] not in {"disk", "receipt-key"}])


@pytest.mark.parametrize(
    ("policy", "why", "level"),
    [
        ("default", "the proof ends with the old service", "ok"),
        ("strict", "the policy demands another proof", "warning"),
        ("observe", None, None),
    ],
)
def test_a_scrub_of_a_clean_gpu_has_its_reason(state, examine, policy, why, level):
    _, found = examine(state, "--policy", policy)
    clean = [(text, how) for how, name, text, _ in found if name == "scrub" and text.startswith("GPU 3, 5:")]
    assert [(why in text, how) for text, how in clean] == ([(True, level)] if why else [])


def test_no_owner_and_no_proof_outlives_a_boot(state, examine, monkeypatch):
    place = state
    monkeypatch.setattr(boot, "boot_id", lambda: "another")
    _, found = examine(place)
    assert [" was with job 7 in another boot" in text for text in texts(found, "owner")] == [True]
    assert "GPU 2, 3, 5: a scrub follows the update, because the ledger is of another boot" in str(found)


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("strict", "refuses from this update on .* Before, under the policy default, pods were held$"),
        ("default", None),
        ("observe", "only watches from this update on.*under the policy default, pods were held$"),
    ],
)
def test_who_is_kept_off_from_now_on_is_said(state, examine, policy, says):
    _, found = examine(state, "--policy", policy)
    assert [bool(re.search(says, text)) for text in texts(found, "fence", "warning")] == ([True] if says else [])
    assert len(texts(found, "fence")) == 1


def test_a_stricter_fence_comes_after_the_one_of_before(state, examine):
    [remedy] = [it[3] for it in examine(state, "--policy", "strict")[1] if it[1] == "fence"]
    assert "(policy.fence=hold of the chart) first" in remedy


REFUSES = "name: mine\ndefaults: {fence: {mode: refuse}}\n"
UNREADABLE = REFUSES.replace("refuse", "rfuse")


@pytest.mark.parametrize(
    ("last", "values", "says"),
    [
        (None, "policy: {shipped: strict}", "strict refuses from this update on .*default, pods were held$"),
        (None, "policy: {fence: watch}", "only watches .*, pods were held$"),
        (None, "policy: {fence: 'off'}", "no fence from this update on.* nobody counts that. .*, pods were held"),
        (REFUSES, "policy: {fence: hold}", "holds .*policy mine, pods and .* refused, unless policy.fence=hold was"),
        (None, f"policy: {{inline: {json.dumps(REFUSES)}}}", "mine refuses .*policy default, pods were held$"),
        (REFUSES, "policy: {shipped: strict}", None),
        (UNREADABLE, "policy: {shipped: fast}", "^it is not known whom the fence kept off a GPU before the update"),
    ],
)  # fmt: skip
def test_the_next_fence_is_compared_with_the_last_one(state, examine, tmp_path, last, values, says):
    if last is not None:
        paths.last_policy(state).write_text(last)
    (tmp_path / "values.yaml").write_text(values)
    _, found = examine(state, "--values", tmp_path / "values.yaml")
    assert [bool(re.search(says, text)) for text in texts(found, "fence", "warning")] == ([True] if says else [])
    assert len(texts(found, "fence")) == 1


def test_a_ledger_of_this_format_promises_no_change(state, examine):
    place = state
    with closing(sqlite3.connect(paths.ledger(place))) as connection:
        connection.execute(f"PRAGMA user_version = {database.VERSION}")
    _, found = examine(place)
    assert (texts(found, "ledger", "warning"), texts(found, "fence", "warning")) == ([], [])


@pytest.mark.parametrize(("blocks", "level"), [(2_559, "broken"), (25_599, "warning"), (25_600, "ok")])
def test_a_disk_that_is_full_is_said_before_the_update(state, examine, monkeypatch, blocks, level):
    place = state
    full = os.statvfs_result((4096, 4096, 10**6, blocks, blocks, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    _, found = examine(place)
    [(how, _, text, _)] = [it for it in found if it[1] == "disk"]
    assert (how, f"the ledger in {place} has room for" in text) == (level, True)
    assert texts(examine(paths.ledger(place))[1], "disk") == [], "a copy may lie anywhere"


VALUES = """
nameOverride: gpus
policy: {shipped: strict, fence: hold}
scrubber: {metricsPort: 9000, extraArgs: [--create-gate, --evidence-rows=9]}
plugin: {extraArgs: [--clean-within=20, --runtime-request-timeout=2m]}
"""


def test_values_that_left_or_stop_a_pod_are_named(state, examine, tmp_path):
    (tmp_path / "values.yaml").write_text(VALUES)
    code, found = examine(state, "--values", tmp_path / "values.yaml")
    left, stops = texts(found, "values", "warning"), texts(found, "values", "broken")
    assert code == 1
    assert [text.split()[2] for text in left] == ["scrubber.metricsPort"]
    assert [re.findall(r"nameOverride|--[a-z-]+", text)[0] for text in stops] == [
        "nameOverride", "--create-gate", "--runtime-request-timeout",
    ]  # fmt: skip
    assert texts(found, "policy") == ["this version takes the policy strict"]
    assert texts(found, "fence", "warning") == [], "policy.fence replaces what the policy says"


def test_flags_that_are_no_list_are_broken(state, examine, tmp_path):
    (tmp_path / "values.yaml").write_text("scrubber: {extraArgs: --create-gate}")
    code, found = examine(state, "--values", tmp_path / "values.yaml")
    assert (code, "found text" in texts(found, "values", "broken")[0]) == (1, True)


@pytest.mark.parametrize("text", ["", "null\n", "USER-SUPPLIED VALUES:\nbackend: nvidia\n"])
def test_values_as_helm_prints_them_are_read(state, examine, tmp_path, text):
    (tmp_path / "values.yaml").write_text(text)
    code, found = examine(state, "--values", tmp_path / "values.yaml")
    assert (code, texts(found, "values", "broken")) == (0, [])


def test_the_last_policy_of_the_node_is_judged(state, examine):
    place = state
    paths.last_policy(place).write_text("# /etc/p.yaml\nname: mine\ndefaults: {gate: start}\n")
    code, found = examine(place)
    [text] = texts(found, "policy", "broken")
    assert (code, "/etc/p.yaml:2:12: defaults.gate: found an unknown key" in text) == (1, True)


def test_a_policy_that_this_version_refuses_is_broken(state, examine, tmp_path):
    (tmp_path / "p.yaml").write_text("name: mine\ndefaults: {gate: start}\n")
    code, found = examine(state, "--policy", tmp_path / "p.yaml")
    [text] = texts(found, "policy", "broken")
    assert (code, "defaults.gate: found an unknown key" in text) == (1, True)


@pytest.mark.parametrize("flags", ["existingConfigMap: gpus", "byNodeLabel: {a: {shipped: fast}}"])
def test_a_policy_that_lies_elsewhere_leaves_the_last_one(state, examine, tmp_path, flags):
    place = state
    paths.last_policy(place).write_text("name: of-the-node\n")
    (tmp_path / "values.yaml").write_text(f"policy: {{shipped: default, {flags}}}\n")
    _, found = examine(place, "--values", tmp_path / "values.yaml")
    [unread], [taken] = texts(found, "policy", "warning"), texts(found, "policy", "ok")
    assert f"{flags.partition(':')[0]} of the values was not read: the last one of the node is judged" in unread
    assert "this version takes the policy of-the-node" in taken
    _, found = examine(place, "--values", tmp_path / "values.yaml", "--policy", "fast")
    assert texts(found, "policy") == ["this version takes the policy fast"]


OTHER = pytest.param("name: mine\n", 4711, "cannot be read", marks=pytest.mark.skipif(os.geteuid() != 0, reason="root"))


@pytest.mark.parametrize(("last", "uid", "why"), [("\0no policy", None, "is damaged"), OTHER])
def test_a_last_policy_of_others_or_damaged_is_not_judged(state, examine, last, uid, why):
    kept = paths.last_policy(state)
    kept.write_text(last)
    if uid is not None:
        os.chown(kept, uid, uid)
    _, found = examine(kept.parent)
    [warned] = texts(found, "policy", "warning")
    assert f"{kept}, {why}" in warned
    assert "no policy was judged" in warned
    assert texts(found, "policy", "ok") + texts(found, "policy", "broken") == []


def test_a_shipped_policy_that_does_not_exist_is_named(state, examine, tmp_path):
    (tmp_path / "values.yaml").write_text("policy: {shipped: strikt, fence: wtch}\n")
    code, found = examine(state, "--values", tmp_path / "values.yaml")
    refused = "the chart refuses the value policy.{}: {} does not exist (did you mean {}?)".format
    wrong = [refused("shipped", "strikt", "strict"), refused("fence", "wtch", "watch")]
    assert (code, texts(found, "values")) == (1, wrong)
    assert "policy.shipped of the values was not read" in texts(found, "policy", "warning")[0]


@pytest.mark.parametrize(
    ("last", "values", "says"),
    [
        (None, None, "default, the last one of this node (--policy names another one)"),
        (REFUSES, None, "mine ({}/last-policy.yaml), the last one of this node (--policy names another one)"),
        (REFUSES, "{}", "default, which the chart chooses, because the values choose none"),
        (REFUSES, "policy: {fence: hold}", "default, which the chart chooses, because the values choose none"),
        (REFUSES, "policy: {shipped: fast}", "fast"),
    ],
)
def test_who_chooses_the_policy_is_said(state, examine, tmp_path, last, values, says):
    place = state
    if last is not None:
        paths.last_policy(place).write_text(last)
    (tmp_path / "values.yaml").write_text(values or "")
    _, found = examine(place, *(() if values is None else ("--values", tmp_path / "values.yaml")))
    assert texts(found, "policy") == [f"this version takes the policy {says.format(place)}"]


def test_the_chart_chooses_the_policy_that_is_judged_without_values():
    chart = YAML(typ="safe").load(CHART_VALUES.read_text())
    assert chart["policy"]["shipped"] == update_facts.OF_CHART
    assert (chart["policy"]["inline"], chart["policy"]["existingConfigMap"], chart["policy"]["byNodeLabel"]) == (
        "",
        "",
        {},
    )


NOT_KEPT = "its service does not start, and has kept no other policy: "
KEEPS = "its service keeps the last policy, mine"
INLINE = f"policy: {{inline: {json.dumps(UNREADABLE)}}}"


@pytest.mark.parametrize(
    ("kept", "values", "says"),
    [
        (None, INLINE, NOT_KEPT),
        (REFUSES, INLINE, NOT_KEPT),  # nobody knows of which file
        (f"# /etc/p.yaml\n{UNREADABLE}", "", NOT_KEPT),
        (f"# /etc/p.yaml\n{UNREADABLE}", INLINE, "does not start, because it also refuses the last policy, /"),
        (f"# /etc/p.yaml\n{REFUSES}", INLINE, "because its last policy is of another file, /etc/p.yaml: "),
        (f"# /etc/autoclave/policy/policy.yaml\n{REFUSES}", INLINE, f"{KEEPS}: "),
        (f"# /etc/p.yaml\n{REFUSES}", None, f"{KEEPS}, if its policy file is still /etc/p.yaml; it does not start"),
    ],
)
def test_a_refused_policy_says_what_the_service_does(state, examine, tmp_path, kept, values, says):
    place = state
    if kept is not None:
        paths.last_policy(place).write_text(kept)
    (tmp_path / "p.yaml").write_text(UNREADABLE)
    (tmp_path / "values.yaml").write_text(values or "")
    named = ["--policy", tmp_path / "p.yaml"] if values is None else ["--values", tmp_path / "values.yaml"]
    code, found = examine(place, *(named if values != "" else ()))
    [text] = texts(found, "policy", "broken")
    assert (code, says in text) == (1, True)


def replace_key(folder: Path) -> None:
    shutil.rmtree(folder)
    open_key(folder.parent)


@pytest.mark.parametrize(
    ("spoil", "says", "remedy"),
    [
        (lambda key: (key / "key.pem").unlink(), "/key.pem is missing", "restore it from a copy, or stop the service"),
        (lambda key: (key / "secret").unlink(), "/secret is missing", "restore it from a copy, or stop the service"),
        (
            lambda key: (key / "secret").write_bytes(b"short"),
            "/secret: it has 5 bytes, not 32",
            "restore it from a copy",
        ),
        (lambda key: (key / "key.pem").write_bytes(b""), "/key.pem: it holds no Ed25519 key", "restore it from a copy"),
        (lambda key: (key / "secret").chmod(0o640), "/secret: its mode is 0640", "chmod 600 "),
        (lambda key: key.chmod(0o777), "receipt-key: other users may write to it", "`chown -R "),
        (shutil.rmtree, "receipt-key is missing, so the service makes a new key", "back from a copy; or give"),
        (replace_key, "receipt-key holds another key, ", "back from a copy; or give the public key"),
    ],
)
def test_a_key_of_receipts_that_signs_no_more_is_named(state, examine, spoil, says, remedy):
    place = state
    [fine] = texts(examine(place)[1], "receipt-key", "ok")
    signer = fine.removeprefix("receipts stay signed by the key ")
    spoil(paths.receipt_key(place))
    code, found = examine(place)
    [(level, _, text, advice)] = [it for it in found if it[1] == "receipt-key"]
    assert (code, level, text.startswith(f"the key {signer} no longer signs receipts: ")) == (0, "warning", True)
    assert (says in text, remedy in advice) == (True, True), (text, advice)
    assert texts(examine(paths.ledger(place))[1], "receipt-key") == [], "a copy may lie anywhere"


def test_a_key_that_will_be_replaced_vouches_for_the_next(state, examine):
    place = state
    next_one = make_next(place)
    [text] = texts(examine(place)[1], "receipt-key", "ok")
    assert text.endswith(f"; from the next start on, by the key {next_one.key_id}, for which it vouches")
    store, _ = opening.open_or_set_aside(paths.ledger(place), Moment(1.0, 1.0))
    store.write_note(ledger_rows.KEY, Moment(1.0, 1.0), announcement(read_key(place)))  # and then it was killed
    store.close()
    assert texts(examine(place)[1], "receipt-key", "ok") == [text]


def test_a_state_without_signed_receipts_needs_no_key(examine, tmp_path):
    store, _ = opening.open_or_set_aside(paths.ledger(tmp_path), Moment(1.0, 1.0))
    store.close()
    tmp_path.chmod(0o700)
    assert texts(examine(tmp_path)[1], "receipt-key") == []
    paths.receipt_key(tmp_path).mkdir(0o700)
    [text] = texts(examine(tmp_path)[1], "receipt-key", "warning")
    assert text.startswith("receipts are not signed: cannot use the key of receipts: ")


def test_a_state_directory_of_others_is_broken(state, examine):
    place = state
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
    ledger = LedgerPaths(paths.ledger(place))
    for file in (ledger.head, ledger.lock):
        file.chmod(0o666)
        [text] = texts(examine(place)[1], "ledger", "broken")
        assert f"cannot use {file}: other users may write to it" in text
        file.chmod(0o600)
    ledger.lock.chmod(0o666)
    code, found = examine(paths.ledger(place))
    assert (code, texts(found, "ledger", "broken")) == (0, []), "a copy may lie anywhere"


@pytest.mark.skipif(os.geteuid() != 0, reason="a directory of another user takes root")
def test_the_state_of_another_user_is_not_judged(state, examine):
    place = state
    os.chown(place, 4711, 4711)
    code, found = examine(place)
    [(_, _, text, remedy)] = [it for it in found if it[:2] == ("broken", "ledger")]
    assert (code, text.startswith(f"{place} belongs to uid 4711, and this check runs as uid 0: it does not")) == (
        1,
        True,
    )
    assert f"`sudo -u '#4711' autoclave doctor --for-update {place}`" in remedy
    assert (texts(found, "receipt-key"), len(texts(found, "quarantine"))) == ([], 2)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="takes root, and setpriv, to give up")
def test_what_this_user_cannot_read_is_said(state):
    place = state
    without_rights = ("setpriv", "--bounding-set", "-all", "--inh-caps", "-all", sys.executable, "-m", "autoclave")

    def examined() -> subprocess.CompletedProcess[str]:
        command = [*without_rights, "doctor", "--for-update", place]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    paths.last_policy(place).write_text("name: mine\n")
    for path in (paths.receipt_key(place), paths.last_policy(place)):
        path.chmod(0o700)
        os.chown(path, 4711, 4711)
    report = " ".join(examined().stdout.split())
    assert f"the last policy of the node, {paths.last_policy(place)}, cannot be read (Permission denied): no" in report
    assert f"cannot use the key in {paths.receipt_key(place)}: it belongs to another user (uid 4711); `chown" in report
    for name in ("ledger.db-wal", "ledger.db.head"):
        os.chown(place / name, 4711, 4711)
        run = examined()
        assert (run.returncode, run.stdout) == (1, "")
        assert f"ledger.db: uid 0 has no permission to open {name}; run this as the user of the service" in run.stderr
        os.chown(place / name, 0, 0)


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
        case "older":
            with closing(sqlite3.connect(paths.ledger(place))) as connection:
                connection.execute(f"PRAGMA user_version = {database.VERSION - 2}")
        case "damaged":
            with closing(sqlite3.connect(paths.ledger(place))) as connection:
                connection.execute("UPDATE entries SET op = 'another'")
                connection.commit()
        case "no ledger":
            return [place / "receipt-key/key.pem"]
        case "lost":
            paths.ledger(place).unlink()
        case "no yaml":
            (folder / "values.yaml").write_text("a: [1\n")
            return [place, "--values", folder / "values.yaml"]
        case "no section":
            (folder / "values.yaml").write_text("policy: strict\n")
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
        ("older", 2, "update to commit 94afefca first"),
        ("damaged", 1, "do not update yet: a start sets its files aside"),
        ("lost", 1, "ledger.db.head exist; do not update yet: a start sets its files aside, and then knows no quarant"),
        ("no ledger", 1, "it is not a ledger"),
        ("no yaml", 2, "it is not YAML"),
        ("no section", 2, 'policy: found text "strict", expected a mapping'),
        ("no values", 2, "No such file or directory; name the file that Helm gets"),
        ("no policy", 2, "expected a policy file or one of default,"),
        ("--only", 2, "--only does not work with --for-update, which checks once"),
        ("--wait", 2, "--wait does not work with --for-update, which checks once"),
    ],
)
def test_a_wrong_input_is_one_sentence_with_a_remedy(state, autoclave, tmp_path, kind, code, says):
    place = state
    run = autoclave("doctor", "--for-update", *spoil(kind, place, tmp_path))
    assert (run.exit_code, run.stdout, run.stderr.count("\n")) == (code, "", 1)
    assert says in run.stderr


def test_values_without_a_state_are_wrong_usage(autoclave):
    run = autoclave("doctor", "--values", "values.yaml")
    assert (run.exit_code, "--values is of --for-update" in run.stderr) == (2, True)
