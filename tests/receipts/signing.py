"""A signer for tests, whose key is made of a word: the same in each run."""

import hashlib
from dataclasses import replace
from functools import cached_property

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from policies.values import FenceMode
from scrubber.core import verdict
from scrubber.core.events import TenancyClosed
from scrubber.core.guarded import UNKNOWN, EndedTenancy, Guarded
from scrubber.core.model import Moment, Receipt
from scrubber.receipts import dsse, key, statement
from tests.core import lives


class WordSigner:
    """Signs with the key of a word."""

    def __init__(self, word="node") -> None:
        self.word = word

    @cached_property
    def private(self):
        return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(self.word.encode()).digest())

    @property
    def public_key(self):
        return self.private.public_key().public_bytes_raw()

    @property
    def key_id(self):
        return key.key_id(self.public_key)

    def sign(self, message):
        return self.private.sign(message)


COUNTED = Guarded(lives.NOW, FenceMode.HOLD, "", FenceMode.WATCH, "0" * 16, "", 3, 1, 2, below='/a "group"')
ENDED = EndedTenancy(7, "boot", lives.NOW, Moment(1.0, 1.0), "uid", "team/a" * 20, receipt="r1", guarded=COUNTED)


def closed(ended: EndedTenancy = ENDED, until_wiped: Guarded = UNKNOWN) -> TenancyClosed:
    """The end of a tenancy, with its signed document."""
    proof = sealed(lives.proof(lives.CLEAN))
    said = statement.closing(ended, until_wiped, proof, lives.DEVICE, "hand-over", statement.Program("0.1.0"))
    return TenancyClosed(ended, proof.id, until_wiped, dsse.envelope(said, WordSigner()))


def sealed(receipt: Receipt, signer=None, node="", device=lives.DEVICE) -> Receipt:
    """This receipt with its signed document."""
    receipt = replace(receipt, digest=verdict.digest_of(receipt))
    about = statement.Program("0.1.0", node=node, simulated=device.simulated)
    said = statement.statement(receipt, device, "hand-over", about, "")
    return replace(receipt, envelope=dsse.envelope(said, signer or WordSigner()))
