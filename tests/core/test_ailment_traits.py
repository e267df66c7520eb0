"""The table of ailments is complete, and agrees with the rooms that may not import it."""

from policies.hardware import DeviceSign
from scrub_api import views
from scrubber.core.ailment_traits import AILMENTS, Course, Remedy
from scrubber.core.model import AilmentKind


def test_each_ailment_has_its_row():
    assert set(AILMENTS) == set(AilmentKind)


def test_a_policy_can_name_each_sign_and_no_other_ailment():
    shown = {kind.value for kind, traits in AILMENTS.items() if traits.sign_after is not None}
    assert shown == {sign.value for sign in DeviceSign}


def test_the_views_know_which_ailments_mean_a_missing_device():
    assert {kind.value for kind, traits in AILMENTS.items() if traits.gone} == views.GONE


def test_a_slice_shows_no_sign_of_links_fabric_and_load():
    unused = {AilmentKind.LINKS, AilmentKind.FABRIC, AilmentKind.GHOST_LOAD}
    assert {kind for kind, traits in AILMENTS.items() if not traits.of_slices} == unused


def test_advice_says_what_a_person_does_and_what_follows():
    assert Remedy(Course.WAIT, ("look",)).advice == ("look",)
    assert Remedy(Course.WAIT, ("look",), "it is tested").advice == ("look", "it is tested")
