"""The shipped files are complete, commented, and different only where they say so."""

import re

import pytest
from ruamel.yaml import YAML

from policies import load
from policies.hardware import Setting, WhenReset
from policies.policy_model import Clear, Eviction, FencePolicy, Mode, Passes, Paths, Policy, Selftest, concessions
from policies.values import FenceMode, ScrubPath

NAMES = ("default", "fast", "observe", "strict")
DEFAULT = load.load("default").defaults


def document(name):
    return YAML(typ="safe", pure=True).load(load.read_shipped(name))


def leaves(mapping, prefix=""):
    for key, value in mapping.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def at(policy, path):
    for part in path.split("."):
        policy = getattr(policy, part)
    return policy


def test_four_policies_are_shipped():
    assert load.shipped() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_policy_has_its_name_and_purpose(name):
    policy_set = load.load(name)
    assert policy_set.name == name
    assert policy_set.description
    assert policy_set.rules == ()


@pytest.mark.parametrize("name", NAMES)
def test_the_first_line_leads_an_editor_to_the_schema(name):
    assert load.read_shipped(name).splitlines()[0] == "# yaml-language-server: $schema=schema.json"


def test_the_default_file_matches_the_model():
    assert Policy() == DEFAULT


def test_the_default_file_spells_out_every_field():
    written = leaves(document("default")["defaults"])
    assert set(written) == {it for it in leaves(Policy().model_dump()) if at(Policy(), it) is not None}


def test_the_default_file_names_every_setting_in_a_comment():
    text = load.read_shipped("default")
    comment = text[text.index("  # The settings of a device") : text.index("  settings: {}")]
    assert all(setting.value in comment for setting in Setting)


@pytest.mark.parametrize("name", NAMES)
def test_every_field_has_a_comment_above_it(name):
    lines = load.read_shipped(name).splitlines()
    for number, line in enumerate(lines):
        if re.match(r"\s{2,}\w+: +\S", line):
            above = next(text for text in reversed(lines[:number]) if not re.match(r"\s*\w+: +\S", text))
            assert above.strip().startswith("#"), f"{name}.yaml:{number + 1}: {line}"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "default"])
def test_the_other_files_say_only_what_differs(name):
    policy = load.load(name).defaults
    for path in leaves(document(name)["defaults"]):
        assert at(policy, path) != at(DEFAULT, path), path


def test_only_observe_hands_out_without_proof():
    modes = {name: load.load(name).defaults.mode for name in NAMES}
    assert [name for name, mode in modes.items() if mode is not Mode.ENFORCE] == ["observe"]
    evict = load.load("observe").defaults.evict
    assert (evict.leftovers, evict.foreign) == (Eviction.WAIT, Eviction.WAIT)


def test_strict_is_stricter_wherever_it_differs():
    strict = load.load("strict").defaults
    assert (strict.paths.first_look, strict.paths.new_tenant) == (ScrubPath.RESET, ScrubPath.RESET)
    assert strict.evict.foreign is Eviction.WAIT
    assert strict.clear.min_coverage > DEFAULT.clear.min_coverage
    assert strict.proof.max_age < DEFAULT.proof.max_age
    assert strict.quarantine.probation.flap_limit == 1
    assert strict.quarantine.probation.first > DEFAULT.quarantine.probation.first


def test_fast_is_short_and_still_proves():
    fast = load.load("fast").defaults
    assert (fast.paths.first_look, fast.paths.new_tenant) == (ScrubPath.FAST, ScrubPath.FAST)
    assert fast.clear.passes is Passes.ZERO
    assert (fast.mode, fast.reset.when) == (Mode.ENFORCE, WhenReset.NEEDED)
    assert fast.clear.min_coverage == DEFAULT.clear.min_coverage
    assert fast.selftest.time < DEFAULT.selftest.time


def test_every_policy_leaves_the_self_test_time_for_its_cleanup():
    for name in NAMES:
        policy = load.load(name).defaults
        assert policy.deadline("selftest") - policy.selftest.time >= 30


def test_the_self_test_time_does_not_change_the_proof_digest():
    other = DEFAULT.model_copy(update={"selftest": Selftest.model_validate({"time": "1s"})})
    assert other.proof_digest == DEFAULT.proof_digest


def test_the_path_between_tenants_changes_the_proof_digest():
    assert len({Policy(paths=Paths(new_tenant=path)).proof_digest for path in ScrubPath}) == 3


@pytest.mark.parametrize("name", ["default", "strict"])
def test_default_and_strict_policies_make_no_concession(name):
    assert concessions(load.load(name).defaults) == ()


@pytest.mark.parametrize(
    ("policy", "word"),
    [
        (Policy(mode=Mode.OBSERVE), "mode observe"),
        (Policy(fence=FencePolicy(mode=FenceMode.OFF)), "fence.mode off"),
        (Policy(fence=FencePolicy(mode=FenceMode.WATCH)), "fence.mode watch"),
        (Policy(paths=Paths(first_look=ScrubPath.FAST)), "paths.first_look fast"),
        (Policy(clear=Clear(passes=Passes.RANDOM)), "clear.passes random"),
    ],
)
def test_each_concession_names_its_setting(policy, word):
    [sentence] = concessions(policy)
    assert sentence.startswith(f"{word}: ")
