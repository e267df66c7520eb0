"""A policy file gives a policy set, or every fault with its position."""

import copy
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from ground.documents.faults import DocumentError, quote
from policies import load
from policies.hardware import WhenReset
from policies.policy_model import Eviction, Mode, PolicySet
from policies.values import ScrubPath


def faults(text):
    with pytest.raises(DocumentError) as caught:
        load.load_text(text, "p.yaml")
    return [str(fault) for fault in caught.value.faults]


def read(text):
    return load.load_text(text, "p.yaml")


EVERYTHING_WRONG = """\
name: Bad Name
defaults:
  mode: obsreve
  budgets:
    alocate: 3s
    allocate: 10
    start: 31s
    allocate: 3s
  evict: {grace: 20s}
  timeouts: 0.01
  clear: {min_coverage: "0.5"}
  proof:
  serial_in_receipts: yes
  quarantine:
    xids:
      preset: nvidia
      codes: {x: count, 094: count, 0: count, 5: quarantin, 79: count}
      repeats: {count: 0}
    probation: {first: .inf, flap_limit: 2.5}
rules:
  - name: a
    match: {model: "NVIDIA*"}
    policy: {budgets: {allocate: 3s}}
  - name: a
    match: {model: "", gpu: [0, "1", -1]}
    policy: {}
  - name: defaults
    match: {model: "NVIDIA H100", mig: true}
    policy: {evict: {grace: 1m}}
  - [5]
  - {name: q, match: {gpu: []}}
extra: 1
"""
EVERY_FAULT = """\
p.yaml:1:7: name: found text "Bad Name", expected a name of lower-case letters, digits and dashes, such as h100-nodes
p.yaml:3:9: defaults.mode: found text "obsreve", expected enforce or observe (did you mean observe?)
p.yaml:5:5: defaults.budgets.alocate: found an unknown key, expected one of allocate (did you mean allocate?)
p.yaml:6:15: defaults.budgets.allocate: found the number 10, expected a duration such as 10s or 5m \
(units: ms, s, m, h, d)
p.yaml:7:5: defaults.budgets.start: found an unknown key, expected one of allocate
p.yaml:8:5: defaults.budgets.allocate: found a duplicate key (first on line 6), expected each key once
p.yaml:10:13: defaults.timeouts: found the number 0.01, expected at least 0.1
p.yaml:11:25: defaults.clear.min_coverage: found text "0.5", expected a number
p.yaml:12:3: defaults.proof: found nothing, expected a value; leave the key out to keep the default
p.yaml:13:23: defaults.serial_in_receipts: found text "yes", expected true or false
p.yaml:16:15: defaults.quarantine.xids.preset: found text "nvidia", expected catalog or nvidia-plugin or gke \
(did you mean nvidia-plugin?)
p.yaml:17:15: defaults.quarantine.xids.codes.x: found text "x", expected the number of an XID, such as 94
p.yaml:17:25: defaults.quarantine.xids.codes.094: found text "094", expected the number of an XID, such as 94
p.yaml:17:37: defaults.quarantine.xids.codes.0: found text "0", expected the number of an XID, such as 94
p.yaml:17:50: defaults.quarantine.xids.codes.5: found text "quarantin", expected quarantine or count \
(did you mean quarantine?)
p.yaml:18:7: defaults.quarantine.xids.repeats: found an unknown key, expected one of preset, unknown, codes
p.yaml:19:24: defaults.quarantine.probation.first: found text ".inf", expected a duration such as 10s or 5m \
(units: ms, s, m, h, d)
p.yaml:19:42: defaults.quarantine.probation.flap_limit: found the number 2.5, expected a whole number
p.yaml:24:11: rules[1].name: found the name "a" again, expected a name that neither another rule nor defaults has
p.yaml:25:20: rules[1].match.model: found text "", expected text that is not empty
p.yaml:25:33: rules[1].match.gpu[1]: found text "1", expected an index such as 0, or a UUID or the beginning of one, \
such as GPU-8f2c
p.yaml:25:38: rules[1].match.gpu[2]: found the number -1, expected an index such as 0, or a UUID or the beginning of \
one, such as GPU-8f2c
p.yaml:27:11: rules[2].name: found the name "defaults" again, expected a name that neither another rule nor defaults has
p.yaml:28:12: rules[2].match: found a rule that never applies, expected devices that the earlier rule a \
does not match
p.yaml:30:5: rules[3]: found a list, expected a mapping of keys and values
p.yaml:31:5: rules[4].policy: found nothing, expected the key policy
p.yaml:31:28: rules[4].match.gpu: found 0 entries, expected at least 1
p.yaml:32:1: extra: found an unknown key, expected one of name, description, defaults, rules
"""


def test_all_faults_of_a_file_are_reported_in_order():
    assert "\n".join(faults(EVERYTHING_WRONG)) + "\n" == EVERY_FAULT


def test_a_name_alone_is_a_policy():
    assert read("name: a") == PolicySet(name="a")


NOT_A_DURATION = "a duration such as 10s or 5m (units: ms, s, m, h, d)"
NOT_A_PATH = "expected [NAMESPACE:]PATH with an absolute path"
AT_ONE = "timeouts 1, where the step selftest ends after"
SHORTER_TIME = "expected the time to be shorter: otherwise the step ends before its cleanup"
# What stands under ``defaults``, and how the first fault goes on.
WRONG_VALUES = (
    ("selftest: {time: 90s}", f"selftest.time: found selftest.time 90s with {AT_ONE} 90s, {SHORTER_TIME}"),
    ("timeouts: 0.5", "timeouts: found selftest.time 1m with timeouts 0.5, where the step selftest ends after 45s"),
    ("timeouts: 10.5", "timeouts: found the number 10.5, expected at most 10.0"),
    ("timeouts: {reset: 90s}", "timeouts: found a mapping, expected a number"),
    ("clear: {own_memory: 1GiB}", "clear.own_memory: found an unknown key, expected one of passes, min_coverage"),
    ("reset: {slices: recreate}", "reset.slices: found an unknown key, expected one of when"),
    ("reset: {when: never}, paths: {first_look: reset}", "paths.first_look: found reset.when never with paths"),
    ("reset: {when: never}, paths: {new_tenant: reset}", "paths.new_tenant: found reset.when never with paths"),
    ("budgets: {allocate: 4.1s}", 'budgets.allocate: found text "4.1s", expected at most 4s'),
    ("budgets: {allocate: 0s}", 'budgets.allocate: found text "0s", expected more than 0s'),
    ("clear: {min_coverage: 1.01}", "clear.min_coverage: found the number 1.01, expected at most 1.0"),
    ("clear: {min_coverage: 0}", "clear.min_coverage: found the number 0, expected more than 0.0"),
    ("quarantine: {xids: 5}", "quarantine.xids: found the number 5, expected a mapping of keys and values"),
    ("quarantine: {probation: {flap_limit: 0}}", "quarantine.probation.flap_limit: found the number 0, expected"),
    ("evict: {grace: -1s}", f'evict.grace: found text "-1s", expected {NOT_A_DURATION}'),
    ("settings: {fan: 3}", "settings.fan: found an unknown key"),
    ("path: slow", ("path: found an unknown key, expected one of mode, model, receipts, "
     "serial_in_receipts, budgets, paths, timeouts, evict, fence, reset, settings, clear, selftest, proof, quarantine "
     "(did you mean paths, with first_look or new_tenant?)")),
    ("new_tenants: slow", ("new_tenants: found an unknown key, expected one of mode, model, "
     "receipts, serial_in_receipts, budgets, paths, timeouts, evict, fence, reset, settings, clear, selftest, proof, "
     "quarantine "
     "(did you mean paths.new_tenant?)")),
    ("settings: {mig: true}", "settings.mig: found an unknown key"),
    ("settings: {leave: [fan]}", "settings.leave"),
    *((f"evict: {{bystanders: ['{wrong}']}}", f'evict.bystanders[0]: found text "{wrong}", {NOT_A_PATH}') for wrong in (
      "usr/bin/x", "/usr/bin/../x", "/usr/bin/x ", "Gpu:/usr/bin/x", "/usr/bin/", "gpu operator:/usr/bin/x")),
    *((f"fence: {{exempt: {{units: ['{wrong}']}}}}",
       f'fence.exempt.units[0]: found text "{wrong}", expected a unit of systemd') for wrong in (
      "telegraf", "*.service", "a*.service", "user-*.slice", "crio-conmon-*", "/", "podruntime/runtime", "/a/../b",
      "/system/*", "/a/", "x y.service")),
    ("evict: {operator_namespaces: [gpu-*]}", "evict.operator_namespaces[0]: "),
)  # fmt: skip


def test_a_unit_may_be_a_pattern_or_a_path():
    units = [
        "a.service",
        "user.slice",
        "crio-conmon-*.scope",
        "dcgm*.service",
        "/podruntime/runtime",
        r"x\x2dy@1.service",
    ]
    written = read(f"name: a\ndefaults: {{fence: {{exempt: {{units: {json.dumps(units)}}}}}}}")
    assert list(written.defaults.fence.exempt.units) == units


def test_units_are_exempt_beside_those_that_always_are():
    one = read("name: a\ndefaults: {fence: {exempt: {units: [a.service]}}}\n").defaults.fence.exempt.all_units
    assert {"a.service", "nvidia-fabricmanager.service", "containerd.service"} <= set(one)


@pytest.mark.parametrize(("written", "fault"), WRONG_VALUES)
def test_a_wrong_value_is_reported_at_its_place(written, fault):
    found, *_ = faults(f"name: a\ndefaults: {{{written}}}\n")
    assert found.startswith("p.yaml:2:")
    assert f": defaults.{fault}" in found
    found, *_ = faults(f"name: a\nrules:\n- {{name: b, match: {{}}, policy: {{{written}}}}}\n")
    assert found.startswith("p.yaml:3:")
    assert f": rules[0].policy.{fault}" in found


def test_the_longest_self_test_ends_before_its_step():
    assert read("name: a\ndefaults: {selftest: {time: 89s}}").defaults.selftest.time == 89


def test_contradictions_are_found_beside_other_faults():
    found = faults(
        "name: a\ndefaults:\n  evict: {grace: 20s}\n"
        "  proof: {max_age: 5}\n  quarantine: {xids: {codes: {0: count}}, probation: {first: 2}}\n"
    )
    assert [fault.split(":")[1] for fault in found] == ["3", "4", "5", "5"]


def test_a_contradiction_beside_a_fault_is_not_reported():
    (fault,) = faults("name: a\ndefaults:\n  evict: {grace: 20s, evit: 30s}\n")
    assert "unknown key" in fault
    (fault,) = faults("name: a\ndefaults:\n  evict: {grace: 20s}\n  timeouts: 30s\n")
    assert 'found text "30s", expected a number' in fault


def test_a_rule_says_only_what_differs_from_the_defaults():
    text = """
name: a
defaults: {evict: {grace: 4s}, paths: {first_look: fast}}
rules: [{name: b, match: {}, policy: {mode: observe, evict: {foreign: wait}, reset: {when: never}}}]
"""
    policy = read(text).rules[0].policy
    assert (policy.mode, policy.reset.when) == (Mode.OBSERVE, WhenReset.NEVER)
    assert policy.paths.first_look is ScrubPath.FAST
    assert (policy.evict.grace, policy.evict.foreign, policy.evict.leftovers) == (4, Eviction.WAIT, Eviction.TERMINATE)


def test_a_contradiction_from_the_merge_is_reported_at_the_rule():
    (fault,) = faults("""\
name: a
defaults: {evict: {grace: 9s}}
rules:
  - name: b
    match: {}
    policy: {timeouts: 0.5, selftest: {time: 1s}}
""")
    assert fault.startswith("p.yaml:6:24: rules[0].policy.timeouts: found evict.grace 9s with timeouts 0.5, where")


def test_a_rule_is_not_blamed_for_what_it_inherits():
    (fault,) = faults("""\
name: a
defaults: {evict: {grace: 20s, leftovers: 5}}
rules: [{name: b, match: {}, policy: {evict: {foreign: wait}}}]
""")
    assert fault.startswith("p.yaml:2:43: defaults.evict.leftovers")


def test_more_rules_than_can_be_compared_are_refused():
    rules = "".join(f"  - {{name: r{n}, match: {{gpu: [{n}]}}, policy: {{}}}}\n" for n in range(257))
    (fault,) = faults(f"name: a\nrules:\n{rules}")
    assert fault == "p.yaml:3:3: rules: found 257 entries, expected at most 256"


@pytest.mark.parametrize("entry", ["true", "-1", "1.5", "'0'", "GPU-", "gpu-8f", "[]", "~"])
def test_an_invalid_gpu_name_is_one_fault(entry):
    (fault,) = faults(f"name: a\nrules: [{{name: b, match: {{gpu: [0, {entry}]}}, policy: {{}}}}]\n")
    assert fault.startswith("p.yaml:2:36: rules[0].match.gpu[1]: found ")


@pytest.mark.parametrize(
    ("text", "found"), [("5", "the number 5"), ("[]", "a list"), ("true", "true"), ("a", 'text "a"')]
)
def test_a_file_that_is_not_a_mapping_gives_one_fault(text, found):
    assert faults(text) == [f"p.yaml:1:1: found {found}, expected a mapping of keys and values"]


def test_a_key_with_control_characters_is_quoted():
    (fault,) = faults('name: a\n"\\e[2Jx": 1\n')
    assert fault.startswith('p.yaml:2:1: "\\u001b[2Jx": found an unknown key')


def test_long_text_is_shown_shortened():
    (fault,) = faults(f"name: a\ndefaults: {{mode: {'x' * 10_000}}}\n")
    assert len(fault) < 200


def test_a_file_is_read_from_its_path(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("\ufeffname: mine\ndescription: für uns\n")
    assert load.load(str(path)) == PolicySet(name="mine", description="für uns")


def unreadable(path):
    with pytest.raises(DocumentError) as caught:
        load.load(str(path))
    (fault,) = caught.value.faults
    assert str(fault).startswith(f"{path}:{fault.line}:{fault.column}: found ")
    return fault


def test_a_missing_file_names_the_shipped_policies():
    fault = unreadable("strickt")
    assert (fault.line, fault.column, fault.found) == (1, 1, "no such file")
    assert fault.expected == "a policy file or one of default, fast, observe, strict"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (".", "a file that cannot be read (Is a directory)"),
        ("a\0b", "a file that cannot be read (embedded null byte)"),
        ("loop", "a file that cannot be read (Too many levels of symbolic links)"),  # also for root
        ("/dev/zero", "a larger file"),
        ("empty", "an empty file"),
    ],
)
def test_an_unreadable_file_is_one_fault(tmp_path, name, found):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "empty").touch()
    assert unreadable(tmp_path / name).found == found


def test_invalid_utf8_is_reported_with_its_position(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes("name: a\ndescription: für\n".encode("latin-1"))
    fault = unreadable(path)
    assert (fault.line, fault.column, fault.found, fault.expected) == (2, 15, "the byte 0xfc", "UTF-8 text")


DOCUMENT = YAML(typ="safe", pure=True).load(load.read_shipped("default"))
DOCUMENT["rules"] = [
    {"name": "h100", "match": {"model": "NVIDIA H100*", "mig": False}, "policy": {"budgets": {"allocate": "3s"}}},
    {"name": "two", "match": {"gpu": [0, "GPU-8f2c"]}, "policy": {"evict": {"grace": "1s"}, "mode": "observe"}},
]
JUNK = st.sampled_from(
    [None, True, -1, 0, 5, 2.5, 10**30, "", "10", "10s", "90s", "slow", "x: y", [], [1], {}, {"x": 1}]
)


def outcome(text):
    """The faults of a text; none if it loads. A DocumentError without a fault fails the test."""
    try:
        read(text)
    except DocumentError as error:
        return error.faults or pytest.fail("refused without a fault")
    return ()


def places(value, way=()):
    """Every location in a document."""
    yield way
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield from places(inner, (*way, key))


def mutated(document, place, junk, rename):
    """The document with junk at a location, or with a misspelt key there."""
    document = copy.deepcopy(document)
    if not place:
        return junk
    *way, last = place
    parent = document
    for key in way:
        parent = parent[key]
    if rename and isinstance(parent, dict):
        parent[f"{last}s"] = parent.pop(last)
    else:
        parent[last] = junk
    return document


def dumped(document):
    out = io.StringIO()
    YAML(typ="safe", pure=True).dump(document, out)
    return out.getvalue()


@given(st.sampled_from(list(places(DOCUMENT))), JUNK, st.booleans())
def test_every_fault_has_a_line_and_a_column(place, junk, rename):
    text = dumped(mutated(DOCUMENT, place, junk, rename))
    lines = text.splitlines()
    for fault in outcome(text):
        assert 1 <= fault.line <= len(lines), fault
        assert 1 <= fault.column <= len(lines[fault.line - 1]) + 1, fault
        assert fault.found, fault
        assert "Input should" not in fault.expected, fault


@given(st.sampled_from([place for place in places(DOCUMENT) if place and isinstance(place[-1], str)]))
def test_a_misspelt_key_is_always_found_at_its_own_line(place):
    text = dumped(mutated(DOCUMENT, place, None, rename=True))
    wrong = [fault for fault in faults(text) if "unknown key" in fault]
    assert wrong
    line = int(wrong[0].split(":")[1])
    assert f"{place[-1]}s" in text.splitlines()[line - 1]


@given(st.text())
def test_text_of_a_file_is_printed_on_one_line(text):
    assert quote(text).isprintable()


def test_a_rule_may_add_keys_to_a_default_mapping():
    rule = "- name: r\n  match: {}\n  policy: {quarantine: {xids: {codes: {94: quarantine}}}}\n"
    written = read(f"name: x\ndefaults: {{quarantine: {{xids: {{codes: {{163: count}}}}}}}}\nrules:\n{rule}")
    assert set(written.rules[0].policy.quarantine.xids.codes) == {94, 163}
