"""What comes through the doors is bounded and of one alphabet before anything is looked up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ground.errors import InvalidRequest, Reason
from scrub_api import request_limits


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ([], "no device was named"),
        ([f"GPU-{n}" for n in range(257)], "257 devices were named, at most 256"),
        (["GPU-1", "GPU-1"], "a device was named twice"),
        ([""], "a device name is empty"),
        (["G" * 64], "longer than 63"),
        (["-rf"], "holds a character"),
        (["GPU 1"], "holds a character"),
        (["GPU-1\n"], "holds a character"),
        (["GPU-é"], "holds a character"),
    ],
)
def test_a_list_of_devices_is_refused_when_it(names, why):
    with pytest.raises(InvalidRequest, match=why) as refusal:
        request_limits.devices(names)
    assert refusal.value.reason is Reason.INVALID_REQUEST


def test_the_largest_request_is_taken():
    names = [f"GPU-{n:059d}" for n in range(256)]
    assert request_limits.devices(names) == names


def test_no_name_at_all_may_mean_all():
    assert request_limits.devices([], needed=False) == []


@given(st.text(max_size=80))
def test_a_device_name_is_short_printable_ascii(name):
    try:
        [taken] = request_limits.devices([name])
    except InvalidRequest:
        return
    assert taken == name
    assert 1 <= len(name) <= 63
    assert name.isascii()
    assert name.isprintable()


@pytest.mark.parametrize("name", ["", " ", "a b", "pod\n", "x" * 129])
def test_an_owner_is_a_name(name):
    with pytest.raises(InvalidRequest, match="the owner"):
        request_limits.owner(name)


@pytest.mark.parametrize(
    ("uids", "why"),
    [
        ([f"pod-{n}" for n in range(257)], "257 pods were named, at most 256"),
        (["container:0123456789ab"], "no UID of a pod"),
        ([""], "no UID of a pod"),
        (["pod-1", "../pod-2"], "no UID of a pod"),
    ],
)
def test_a_list_of_pods_is_refused_when_it(uids, why):
    with pytest.raises(InvalidRequest, match=why):
        request_limits.pods(uids)


def test_a_pod_uid_is_an_owner():
    assert request_limits.owner("8d2f4b9e-0d3c-4a57-9f0a-6c1f6a0b7c11") == "8d2f4b9e-0d3c-4a57-9f0a-6c1f6a0b7c11"


@pytest.mark.parametrize("text", ["two\nlines", "\x1b[2J", "a\u202eb", "nul\x00"])
def test_words_that_could_fool_a_terminal_are_refused(text):
    with pytest.raises(InvalidRequest, match="control character"):
        request_limits.one_line(text, "the reason")


def test_an_owner_may_be_any_short_line():
    assert request_limits.acquired_for(" job 4711 of é ") == "job 4711 of é"
    assert request_limits.acquired_for("") == ""
    with pytest.raises(InvalidRequest, match="the owner is blank"):
        request_limits.acquired_for(" ")
    assert len(request_limits.acquired_for("x" * 128)) == 128
    with pytest.raises(InvalidRequest, match="the owner has 129 characters, at most 128 are allowed"):
        request_limits.acquired_for("x" * 129)


def test_words_are_asked_for_where_they_are_needed():
    with pytest.raises(InvalidRequest, match="the reason is empty"):
        request_limits.one_line("   ", "the reason", needed=True)
    assert request_limits.one_line("   ", "the reason") == ""
