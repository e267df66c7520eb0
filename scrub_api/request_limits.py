"""Limits for the fields of a request: lengths, characters, no duplicates. Checked before anything else happens."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from ground.errors import InvalidRequest

MOST_DEVICES = 256
MOST_PODS = 256  # as many as a claim can be reserved for
_LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,62}")  # the kubelet allows 63 characters
OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
POD = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")
LONGEST_WORDS = 500
LONGEST_OWNER = 128


def _wrong(why: str, *remedies: str) -> InvalidRequest:
    return InvalidRequest(f"cannot take the request: {why}", *remedies)


def devices(names: Sequence[str], *, needed: bool = True) -> list[str]:
    """The same names, or InvalidRequest. ``needed``: an empty list is invalid, too."""
    if needed and not names:
        raise _wrong("no device was named")
    if len(names) > MOST_DEVICES:
        raise _wrong(f"{len(names)} devices were named, at most {MOST_DEVICES} are allowed")
    for name in names:
        if DEVICE.fullmatch(name) is None:
            raise _wrong(
                "a device name is empty, longer than 63 characters, or holds a character other than letters, "
                "digits and ._:/-"
            )
    if len(set(names)) != len(names):
        raise _wrong("a device was named twice")
    return list(names)


def owner(name: str) -> str:
    """The same owner, or InvalidRequest."""
    if OWNER.fullmatch(name) is None:
        raise _wrong(
            "the owner is empty, longer than 128 characters, or holds a character other than letters, digits and ._:/-"
        )
    return name


def acquired_for(name: str) -> str:
    """The owner whom the caller of Acquire or Release names in free text, stripped, or InvalidRequest.

    Empty: none is named. A blank owner is an unset variable of a script: as none, it would release any job's GPU.
    """
    if name and not name.strip():
        raise _wrong("the owner is blank")
    return one_line(name, "the owner", longest=LONGEST_OWNER)


def pods(uids: Sequence[str]) -> frozenset[str]:
    """The UIDs of pods, or InvalidRequest."""
    if len(uids) > MOST_PODS:
        raise _wrong(f"{len(uids)} pods were named, at most {MOST_PODS} are allowed")
    if any(POD.fullmatch(uid) is None for uid in uids):
        raise _wrong("a pod was named by what is no UID of a pod")
    return frozenset(uids)


def one_line(text: str, what: str, *, needed: bool = False, longest: int = LONGEST_WORDS) -> str:
    """The text of a person, stripped, or InvalidRequest: one line without control characters."""
    if needed and not text.strip():
        raise _wrong(f"{what} is empty", "the ledger stores it, so give one")
    if len(text) > longest:
        raise _wrong(f"{what} has {len(text)} characters, at most {longest} are allowed")
    if any(unicodedata.category(char).startswith("C") for char in text):
        raise _wrong(f"{what} holds a control character: give one line of plain text")
    return text.strip()


def is_subdomain(name: str, max_length: int = 253) -> bool:
    """Whether the name is a DNS subdomain of at most this length, as Kubernetes checks it (RFC 1123)."""
    return len(name) <= max_length and _SUBDOMAIN.fullmatch(name) is not None
