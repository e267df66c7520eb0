"""What a driver error code does to a device: by preset, exception and repeats, and for unknown codes."""

import hashlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ground.documents import validation
from policies import load, xids
from policies.values import Xid
from policies.xids import ROWS, Preset, RequiredAction, Treatment, XidFinding, Xids, XidScope

QUARANTINE, COUNT = Treatment.QUARANTINE, Treatment.COUNT
_, PLUGIN, GKE = Preset
DEFAULT = Xids()


def event(code, at=0.0, action=""):
    return Xid(0, code, at, action)


def rules(**said):
    return validation.build(Xids, said)


def verdict(log, new=None, **said):
    """The finding for a log. By default all its events are new."""
    return xids.worst_finding(rules(**said), log, log if new is None else new)


# -- the catalogue


def test_the_table_has_the_codes_of_nvidias_catalogue():
    """Code, name, action and scope of the 172 rows of the catalogue."""
    text = "\n".join(f"{row.code} {row.mnemonic} {row.action.value} {row.scope.value}" for row in ROWS.values())
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest == "a05eb46b2c93f1d4299e19846a18a644bd5f28c2ba0482aaaa284af4cf97bdd3"
    assert Counter(row.action.value for row in ROWS.values()) == {
        "contact_support": 62, "restart_app": 48, "ignore": 22, "reset_gpu": 16, "none": 12, "workflow_nvlink": 8,
        "restart_vm_or_node": 2, "check_mechanicals": 1, "update_software": 1,
    }  # fmt: skip


def test_every_code_to_172_has_a_description_in_order():
    assert list(ROWS) == list(range(1, 173))
    assert all(row.description and row.description[-1] != "." for row in ROWS.values())


def test_an_application_error_asks_for_an_application_restart():
    assert {code for code, row in ROWS.items() if row.application} >= {8, 13, 31, 94}
    assert all(row.scope is XidScope.APP for row in ROWS.values() if row.application)
    assert not any(ROWS[code].application for code in (43, 45, 48, 63, 79))


# -- one event


def test_the_catalogue_preset_quarantines_for_all_severe_actions():
    mild = {RequiredAction.IGNORE: COUNT, RequiredAction.RESTART_APP: COUNT}
    for row in ROWS.values():
        assert xids.treatment(DEFAULT, row.code) is mild.get(row.action, QUARANTINE), row


def test_the_peers_lists_are_as_they_are_there():
    counted = {code for code in ROWS if xids.treatment(Xids(preset=PLUGIN), code) is COUNT}
    assert counted == {13, 31, 43, 45, 68, 109} | {code for code, row in ROWS.items() if row.application}
    assert {code for code in ROWS if xids.treatment(Xids(preset=GKE), code) is QUARANTINE} == {48}


def test_an_application_error_is_counted_under_every_preset():
    assert {
        xids.treatment(Xids(preset=preset, unknown=unknown), code)
        for preset in Preset for unknown in Treatment for code, row in ROWS.items() if row.application
    } == {COUNT}  # fmt: skip


@pytest.mark.parametrize("unknown", Treatment)
def test_the_policys_word_unknown_decides_for_codes_without_action(unknown):
    for preset in Preset:
        assert {xids.treatment(Xids(preset=preset, unknown=unknown), code) for code in (173, 10**9)} == {unknown}
    nothing_asked = [code for code, row in ROWS.items() if row.action is RequiredAction.NONE]
    assert {xids.treatment(Xids(unknown=unknown), code) for code in nothing_asked} == {unknown}
    for unreadable in ("", "Reset", "GPU Reset Required"):
        assert xids.treatment(Xids(unknown=unknown), 154, unreadable) is unknown
        assert xids.required_action(154, unreadable) is RequiredAction.NONE


@pytest.mark.parametrize("preset", Preset)
@pytest.mark.parametrize("code", [13, 48, 79, 94, 154, 999])
@pytest.mark.parametrize("wanted", Treatment)
def test_an_exception_wins_over_everything(preset, code, wanted):
    said = Xids(preset=preset, codes={code: wanted})
    assert xids.treatment(said, code, "reset_gpu") is wanted
    assert xids.treatment(said, 62) is xids.treatment(Xids(preset=preset), 62)


@pytest.mark.parametrize(
    ("action", "done"),
    [
        ("none", COUNT), ("ignore", COUNT), ("restart_app", COUNT), ("reset_gpu", QUARANTINE),
        ("restart_vm_or_node", QUARANTINE), ("drain_p2p", QUARANTINE), ("contact_support", QUARANTINE),
        ("check_mechanicals", QUARANTINE), ("workflow_nvlink", QUARANTINE), ("update_software", QUARANTINE),
    ],
)  # fmt: skip
def test_the_message_of_a_recovery_code_decides(action, done):
    for unknown in Treatment:
        assert xids.treatment(Xids(unknown=unknown), 154, action) is done
    assert xids.required_action(154, action).value == action
    assert xids.treatment(Xids(preset=PLUGIN), 154, action) is QUARANTINE
    assert xids.treatment(Xids(preset=GKE), 154, action) is COUNT


def test_the_message_of_any_other_code_is_ignored():
    assert xids.required_action(79, "none") is RequiredAction.RESTART_VM_OR_NODE
    assert xids.treatment(DEFAULT, 79, "none") is QUARANTINE


# -- a log


def test_a_finding_names_its_code():
    assert verdict([event(79)]) == XidFinding(79, "xid 79 (ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS) was reported")
    assert verdict([event(999)]) == XidFinding(999, "xid 999 (not in the catalogue) was reported")
    found = verdict([event(154, action="restart_vm_or_node")])
    asks = "and asks: drain and restart the node, or the virtual machine that has the GPU"
    assert found == XidFinding(154, f"xid 154 (GPU_RECOVERY_ACTION_CHANGED) was reported {asks}")
    assert verdict([event(154)]).why == "xid 154 (GPU_RECOVERY_ACTION_CHANGED) was reported"


@pytest.mark.parametrize("log", [[], [event(13)], [event(63)], [event(154, action="none")]])
def test_counted_codes_quarantine_no_device(log):
    assert verdict(log) is None


def test_the_first_of_the_strictest_codes_is_named():
    assert verdict([event(13), event(48), event(79), event(95)]).code == 79
    assert verdict([event(95), event(48), event(154, action="reset_gpu")]).code == 95
    assert verdict([event(999), event(48)]).code == 48


REPEATS = [
    ("once too few", 63, (0, 1, 2, 3), None),
    ("enough", 63, (0, 1, 2, 3, 4), 5),
    ("more than enough", 63, (0, 1, 2, 3, 4, 5), 6),
    ("all at the same time", 63, (7, 7, 7, 7, 7), 5),
    ("as far apart as may be", 63, (100, 200, 300, 400, 700), 5),
    ("a little further", 63, (100, 200, 300, 400, 700.5), None),
    ("a burst, and later one more", 63, (0, 1, 2, 3, 4, 5000), 5),
    ("a link that corrects itself", 121, (0, 1, 2, 3, 4), 5),
    ("a recovery that is over, time and again", 154, (0, 1, 2, 3, 4), 5),
    ("an application error", 13, (0, 1, 2, 3, 4), None),
    ("an application error in memory", 94, (0,) * 50, None),
    ("a channel that was removed", 45, (0,) * 50, None),
    ("a test message of one process", 14, (0,) * 50, None),
]


@pytest.mark.parametrize(("code", "times", "count"), [row[1:] for row in REPEATS], ids=[row[0] for row in REPEATS])
def test_too_many_repeats_within_the_window_quarantine_the_device(code, times, count):
    found = verdict([event(code, at, "none") for at in times])
    why = f"xid {code} ({ROWS[code].mnemonic}) was reported {count} times within 10m"
    assert found == (None if count is None else XidFinding(code, why))


def test_repeats_are_counted_by_code():
    assert verdict([event(63), event(92)] * 4) is None
    assert verdict([event(63), *[event(92)] * 5]).code == 92


def test_known_events_count_but_a_new_one_is_needed():
    log = [event(63, at) for at in range(5)]
    assert verdict(log, new=log[4:]).why.endswith("5 times within 10m")
    assert verdict(log, new=[]) is None
    assert verdict([*log, event(63, 5000.0)], new=[event(63, 5000.0)]) is None


def test_a_code_set_to_count_never_quarantines_by_repeats():
    assert verdict([event(63)] * 9, codes={"63": "count"}) is None
    assert verdict([event(79)] * 9, codes={"79": "count"}) is None
    assert verdict([event(999)] * 5, unknown="count").code == 999


def test_repeated_xids_count_under_every_shipped_policy():
    assert verdict([event(79)] * 5, preset="gke").why.endswith("5 times within 10m")
    assert verdict([event(109)] * 5, preset="nvidia-plugin").code == 109
    assert verdict([event(94)] * 50, preset="nvidia-plugin") is None


CODES = st.sampled_from((13, 45, 48, 63, 79, 94, 154, 171, 999))
ACTIONS = st.sampled_from(("", "none", "reset_gpu", "nonsense"))
LOGS = st.lists(st.builds(event, CODES, st.floats(0, 2000), ACTIONS), max_size=30)
RULES = st.builds(
    Xids,
    preset=st.sampled_from(Preset),
    unknown=st.sampled_from(Treatment),
    codes=st.dictionaries(CODES, st.sampled_from(Treatment), max_size=3),
)


@given(RULES, LOGS, st.integers(0, 30))
def test_only_new_events_quarantine_a_device(said, log, known):
    new = log[known:]
    found = xids.worst_finding(said, log, new)
    if any(xids.treatment(said, event.code, event.action) is QUARANTINE for event in new):
        assert found is not None
    assert found is None or found.code in {event.code for event in new}
    assert xids.worst_finding(said, log, []) is None


@given(RULES, LOGS)
def test_an_application_error_quarantines_only_if_the_policy_names_it(said, log):
    found = xids.worst_finding(said, log, log)
    if found is not None and found.code in (13, 94):
        assert said.codes[found.code] is QUARANTINE


@given(LOGS)
def test_too_many_are_found_by_counting_each_window_by_hand(log):
    counted = [event for event in log if event.code == 63]
    most = max((sum(it.at - 600 <= other.at <= it.at for other in counted) for it in counted), default=0)
    found = xids.worst_finding(DEFAULT, counted, counted)
    assert (found is not None) is (most >= 5)


# -- words


@pytest.mark.parametrize(
    ("code", "action", "advice"),
    [
        (79, "", "drain and restart the node, or the virtual machine that has the GPU"),
        (48, "", "reset the GPU before new work uses it"),
        (1, "", "contact support; the GPU may have to be replaced (RMA)"),
        (63, "", "nothing"),
        (154, "none", "nothing"),
        (154, "drain_p2p", "end peer-to-peer work on the device first"),
        (154, "", "the action that its message in the kernel log names"),
        (154, "Reset", "the action that its message in the kernel log names"),
        (171, "", "the catalogue names no action: read the kernel log around it"),
        (999, "", "the catalogue does not know it: read the kernel log around it, and ask the vendor"),
    ],
)
def test_every_action_for_an_xid_has_a_remedy(code, action, advice):
    assert xids.remedy(code, action) == advice


# -- in a file


def test_the_exceptions_of_a_rule_are_merged_over_the_defaults():
    found = load.load_text(
        "name: a\n"
        "defaults: {quarantine: {xids: {codes: {94: quarantine, 109: count}}}}\n"
        "rules: [{name: b, match: {mig: true}, policy: {quarantine: {xids: {codes: {94: count}}}}}]\n",
        "p.yaml",
    )
    assert found.rules[0].policy.quarantine.xids.codes == {94: COUNT, 109: COUNT}
    assert found.defaults.quarantine.xids.codes == {94: QUARANTINE, 109: COUNT}
