"""The key that signs receipts: an Ed25519 key in a file of the state directory, and a secret for ids.

The library ``cryptography`` is loaded by the functions that sign or verify, and by nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import secrets
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path
from typing import Protocol

from ground import paths, private_files
from ground.errors import ErrorWithRemedies
from ground.quantities import quantity

KEY, NEXT, SECRET = "key.pem", "next.pem", "secret"
BYTES = 32  # of a key, and of the secret
# What comes before the 32 bytes of an Ed25519 key in a file of OpenSSL (RFC 8410).
PUBLIC, PRIVATE = bytes.fromhex("302a300506032b6570032100"), bytes.fromhex("302e020100300506032b657004220420")
NOTE_TYPE = b"\x01"  # Ed25519, in the keys of signed notes
_PEM = re.compile(r"-----BEGIN (?P<kind>[A-Z ]+)-----\s(?P<body>[A-Za-z0-9+/=\s]+)-----END (?P=kind)-----\s*")
_INSTALL = "install the extra `receipts` (in a checkout: pip install '.[receipts]')"
_REMEDY = (
    "restore it from a copy, or stop the service, move the directory away, and start the service: it makes a new key"
)


class ReceiptError(ErrorWithRemedies):
    """A receipt, a proof or a checkpoint is not what it should be. The message names what is wrong."""


class Signer(Protocol):
    """Signs with Ed25519: a key in a file today; a TPM or a signing service would be another."""

    @property
    def key_id(self) -> str:
        """The first 16 hex digits of the SHA-256 of the public key."""

    @property
    def public_key(self) -> bytes:
        """The public key, 32 bytes."""

    def sign(self, message: bytes) -> bytes:
        """The signature of the message, 64 bytes."""


@dataclass(frozen=True, slots=True)
class FileKey:
    """A key of a file, and the secret of the node. ``next``: the key that takes its place at the next start."""

    public_key: bytes
    secret: bytes = field(repr=False)
    next: FileKey | None
    _seed: bytes = field(repr=False)

    @property
    def key_id(self) -> str:
        """The first 16 hex digits of the SHA-256 of the public key."""
        return key_id(self.public_key)

    def sign(self, message: bytes) -> bytes:
        """The signature of the message, 64 bytes."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415 - signs

        return Ed25519PrivateKey.from_private_bytes(self._seed).sign(message)


def open_key(state_dir: Path) -> FileKey:
    """The key of this node, made at the first start, where this installation can sign.

    ReceiptError if a file is not as it was made. A key is never replaced unless somebody asks for that.
    """
    folder = paths.receipt_key(state_dir)
    if not folder.is_symlink() and not folder.exists():
        _make(folder)
    return read_key(state_dir)


def can_sign() -> bool:
    """Whether this installation can sign and verify."""
    return util.find_spec("cryptography") is not None


def read_key(state_dir: Path) -> FileKey:
    """The key of this node, which the service has made."""
    if not can_sign():
        raise ReceiptError(f"cannot use the key of receipts: {_INSTALL}")
    folder = paths.receipt_key(state_dir)
    secret = _read(folder / SECRET)
    if len(secret) != BYTES:
        raise ReceiptError(
            f"cannot use the secret {folder / SECRET}: it has {quantity(len(secret), 'byte')}, not {BYTES}", _REMEDY
        )
    following = _file_key(folder / NEXT, secret) if (folder / NEXT).exists() else None
    return _file_key(folder / KEY, secret, following)


def make_next(state_dir: Path) -> FileKey:
    """Make the key that the service takes at its next start. One that was made before stays."""
    present = read_key(state_dir)
    if present.next is not None:
        return present.next
    path = paths.receipt_key(state_dir) / NEXT
    private_files.replace(path, _private_pem(secrets.token_bytes(BYTES)))
    return _file_key(path, present.secret)


def take_next(state_dir: Path) -> FileKey:
    """Replace the key by the next one. The caller has recorded the rotation before."""
    folder = paths.receipt_key(state_dir)
    (folder / NEXT).replace(folder / KEY)
    private_files.sync_directory(folder)
    return read_key(state_dir)


def verify(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the holder of this key has signed the message."""
    if not can_sign():
        raise ReceiptError(f"cannot verify a signature: {_INSTALL}")
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - verifies
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415 - verifies

    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def key_id(public_key: bytes) -> str:
    """The id of a key in envelopes and in the ledger."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def note_id(name: str, public_key: bytes) -> bytes:
    """The id of a key in signed notes, where its owner has this name: 4 bytes."""
    return hashlib.sha256(name.encode() + b"\n" + NOTE_TYPE + public_key).digest()[:4]


def public_pem(public_key: bytes) -> str:
    """The public key as OpenSSL reads it."""
    return _pem("PUBLIC KEY", PUBLIC + public_key)


def vkey(public_key: bytes, name: str) -> str:
    """The public key as readers of signed notes take it."""
    return f"{name}+{note_id(name, public_key).hex()}+{base64.b64encode(NOTE_TYPE + public_key).decode()}"


def public_key_of(text: str) -> bytes:
    """The public key in a PEM, in base64, or in a key of signed notes; ReceiptError if it is none of these."""
    text = text.strip()
    try:
        if pem := _PEM.fullmatch(text):
            content = base64.b64decode("".join(pem["body"].split()), validate=True)
            key = content.removeprefix(PUBLIC) if pem["kind"] == "PUBLIC KEY" and content.startswith(PUBLIC) else b""
        elif (parts := text.split("+", 2))[2:] and re.fullmatch(r"[0-9a-f]{8}", parts[1]):
            content = base64.b64decode(parts[2], validate=True)
            key = content.removeprefix(NOTE_TYPE)
            key = key if content[:1] == NOTE_TYPE and parts[1] == note_id(parts[0], key).hex() else b""
        else:
            key = base64.b64decode(text, validate=True)
    except ValueError:  # no base64, or no ASCII
        key = b""
    if len(key) != BYTES:
        raise ReceiptError(
            "it is not an Ed25519 public key: give a PEM, 32 bytes in base64, or a verifier key of signed notes"
        )
    return key


def _make(folder: Path) -> None:
    """Make both files in one step, so that a missing one was always removed by somebody."""
    aside = folder.with_name(f".{folder.name}.new")
    private_files.make_folder(aside)
    private_files.replace(aside / KEY, _private_pem(secrets.token_bytes(BYTES)))
    private_files.replace(aside / SECRET, secrets.token_bytes(BYTES))
    aside.rename(folder)
    private_files.sync_directory(folder.parent)


def _file_key(path: Path, secret: bytes, following: FileKey | None = None) -> FileKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415 - will sign

    pem = _PEM.fullmatch(_read(path).decode("ascii", errors="replace"))
    try:
        content = base64.b64decode("".join(pem["body"].split())) if pem else b""
    except ValueError:  # no base64
        content = b""
    seed = content.removeprefix(PRIVATE)
    if len(seed) != BYTES or not content.startswith(PRIVATE):
        raise ReceiptError(f"cannot use the key {path}: it holds no Ed25519 key", _REMEDY)
    public_key = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    return FileKey(public_key, secret, following, seed)


def _read(path: Path) -> bytes:
    """The content of a file that no other user may read; ReceiptError with a remedy otherwise."""
    try:
        if (fault := private_files.directory_fault(path.parent, private_files.NOT_TO_CHANGE)) is not None:
            raise ReceiptError(f"cannot use the key in {path.parent}: {fault}")
        descriptor = private_files.opened(path, os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as file:
            mode = os.fstat(descriptor).st_mode & 0o777
            if mode & private_files.NOT_TO_ENTER:
                remedy = f"chmod 600 {path}, and make a new key with `autoclave receipt key --rotate`"
                why = f"its mode is {mode:04o}, other users may have read it"
                raise ReceiptError(f"cannot use {path}: {why}", remedy)
            return file.read()
    except FileNotFoundError as error:
        raise ReceiptError(f"cannot use the key of receipts: {path} is missing", _REMEDY) from error
    except private_files.ForeignFileError as error:
        raise ReceiptError(f"cannot use the key {path}: {error.why}", error.remedy) from error
    except OSError as error:
        raise ReceiptError(f"cannot use the key {path}: {error.strerror}") from error


def _private_pem(seed: bytes) -> bytes:
    return _pem("PRIVATE KEY", PRIVATE + seed).encode()


def _pem(kind: str, content: bytes) -> str:
    return f"-----BEGIN {kind}-----\n{base64.b64encode(content).decode()}\n-----END {kind}-----\n"
