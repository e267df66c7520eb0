"""Each promise that a policy gives up has a sentence, and the shipped default gives up none."""

import pytest

from policies import concessions, load
from policies.model import Clear, Mode, OnChip, OnSick, Paths, Policy, Proof
from policies.path import ScrubPath


@pytest.mark.parametrize("name", ["default", "strict"])
def test_default_and_strict_policies_make_no_concession(name):
    assert concessions.of(load.load(name).defaults) == ()


@pytest.mark.parametrize(
    ("policy", "word"),
    [
        (Policy(mode=Mode.OBSERVE), "mode observe"),
        (Policy(paths=Paths(first_look=ScrubPath.FAST)), "paths.first_look fast"),
        (Policy(clear=Clear(on_chip=OnChip.SLOW_PATH)), "clear.on_chip slow-path"),
        (Policy(restart_on_sick=OnSick.ALLOW), "restart_on_sick allow"),
        (Policy(proof=Proof(survives_restart=True)), "proof.survives_restart"),
    ],
)
def test_each_concession_names_its_setting(policy, word):
    [sentence] = concessions.of(policy)
    assert sentence.startswith(f"{word}: ")
