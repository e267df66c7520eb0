"""The id of a hand-over is new for each tenancy, and cannot be guessed."""

from scrubber.receipts.tenant_files import handover_id, owner_digest


def test_the_id_is_the_agreed_one():
    """Others compute it too: an id of another form would lose the files of a tenant."""
    assert handover_id(b"secret", "GPU-1", 7) == "c09cedefa4b9ce305611f3fe"
    assert handover_id(b"secret", "GPU-1", 0) == "54c929df005fbf1a02ce6ecf"


def test_each_tenancy_device_and_node_has_another_id():
    others = (handover_id(b"secret", "GPU-1", 8), handover_id(b"secret", "GPU-2", 7), handover_id(b"other", "GPU-1", 7))
    assert len({handover_id(b"secret", "GPU-1", 7), *others}) == 4


def test_an_owner_has_another_digest_in_each_handover():
    digests = {owner_digest(b"secret", handover, "pod") for handover in ("a", "b")} | {owner_digest(b"x", "a", "pod")}
    assert len(digests) == 3
    assert owner_digest(b"secret", "a", "") == ""
