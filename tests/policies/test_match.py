"""Which rule applies, and the sentence that explains it."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import match
from policies.policy_model import Match, Mode, Policy, PolicySet, Rule

H100 = match.Subject("GPU-8f2c01", 0, "NVIDIA H100 80GB HBM3", mig=False, resource="nvidia.com/gpu")
OBSERVED = Policy(mode=Mode.OBSERVE)


def policy_set(*matches):
    return PolicySet(
        name="test",
        rules=tuple(Rule(name=f"r{index}", match=one, policy=OBSERVED) for index, one in enumerate(matches)),
    )


def test_without_rules_the_defaults_apply():
    assert match.resolve(policy_set(), H100) == match.Matched(
        Policy(), "defaults", "the defaults, because the policy has no rules"
    )


def test_without_a_matching_rule_the_defaults_apply():
    found = match.resolve(policy_set(Match(mig=True)), H100)
    assert found == match.Matched(Policy(), "defaults", "the defaults, because no rule matches")


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        (Match(), "the rule matches every device"),
        (Match(model="NVIDIA H100*"), 'model "NVIDIA H100 80GB HBM3" matches "NVIDIA H100*"'),
        (Match(mig=False), "it is not a MIG device"),
        (Match(resource="nvidia.com/*"), 'resource "nvidia.com/gpu" matches "nvidia.com/*"'),
        (Match(gpu=(3, 0)), "its index is 0"),
        (Match(gpu=("GPU-1", "GPU-8f2c")), 'UUID "GPU-8f2c01" begins with "GPU-8f2c"'),
        (Match(model="*H100*", gpu=(0,)), 'model "NVIDIA H100 80GB HBM3" matches "*H100*" and its index is 0'),
    ],
)
def test_a_rule_applies_and_says_why(condition, why):
    assert match.resolve(policy_set(condition), H100) == match.Matched(OBSERVED, "r0", f"rule r0: {why}")


def test_the_explanation_names_a_mig_device():
    subject = dataclasses.replace(H100, mig=True)
    assert match.resolve(policy_set(Match(mig=True)), subject).why == "rule r0: it is a MIG device"


@pytest.mark.parametrize(
    "condition",
    [
        Match(model="nvidia h100*"),
        Match(model="NVIDIA H100"),
        Match(mig=True),
        Match(resource="amd.com/*"),
        Match(gpu=(1,)),
        Match(gpu=("GPU-9",)),
        Match(model="NVIDIA H100*", mig=True),
        Match(gpu=(0,), resource="other"),
    ],
)
def test_a_rule_needs_all_its_conditions(condition):
    assert match.resolve(policy_set(condition), H100).rule == "defaults"


def test_the_first_rule_that_matches_applies():
    assert match.resolve(policy_set(Match(mig=True), Match(gpu=(0,)), Match()), H100).rule == "r1"


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (Match(), Match()),
        (Match(), Match(model="NVIDIA*")),
        (Match(model="NVIDIA H100*"), Match(model="NVIDIA H100*")),
        (Match(model="NVIDIA H100*"), Match(model="NVIDIA H100*", mig=True)),
        (Match(model="NVIDIA H100*"), Match(model="NVIDIA H100 PCIe")),
        (Match(resource="*"), Match(mig=True)),
        (Match(mig=True), Match(mig=True, resource="a")),
        (Match(gpu=(0, 1)), Match(gpu=(1,))),
        (Match(gpu=("GPU-8",)), Match(gpu=("GPU-8f2c",))),
    ],
)
def test_a_rule_whose_devices_match_earlier_is_unreachable(earlier, later):
    assert list(match.unreachable([earlier, later])) == [(1, 0)]


GLOBS = st.none() | st.text("ab*?[", min_size=1, max_size=3)
GPUS = st.none() | st.lists(st.sampled_from([0, 1, "GPU-a", "GPU-ab", "GPU-b"]), min_size=1, max_size=2).map(tuple)
MATCHES = st.builds(Match, model=GLOBS, mig=st.none() | st.booleans(), resource=GLOBS, gpu=GPUS)
SUBJECTS = [
    match.Subject(uuid, index, model, mig, resource)
    for uuid, index, model, mig, resource in itertools.product(
        ("GPU-a1", "GPU-ab1", "GPU-b1"), (0, 1, 2), ("a", "ab", "["), (True, False), ("a", "b")
    )
]


@given(st.lists(MATCHES, max_size=4))
def test_an_unreachable_rule_never_applies(matches):
    dead = {f"r{later}" for later, _ in match.unreachable(matches)}
    assert not dead & {match.resolve(policy_set(*matches), subject).rule for subject in SUBJECTS}
