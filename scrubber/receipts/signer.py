"""The port to a key that signs receipts: a file (``key``) today; a TPM or a signing service would be another."""

from __future__ import annotations

from typing import Protocol

from ground.errors import ErrorWithRemedies


class ReceiptError(ErrorWithRemedies):
    """A receipt, a proof or a checkpoint is not what it should be. The message names what is wrong."""


class Signer(Protocol):
    """Signs with Ed25519."""

    @property
    def key_id(self) -> str:
        """The first 16 hex digits of the SHA-256 of the public key."""

    @property
    def public_key(self) -> bytes:
        """The public key, 32 bytes."""

    def sign(self, message: bytes) -> bytes:
        """The signature of the message, 64 bytes."""
