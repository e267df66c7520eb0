r"""Which program a trial has run: the hash that git gives to a tree of these folders, also where git is not.

The tree of a commit::

    git ls-tree COMMIT access autoclave benchmarks containers ground plugin policies remnant scrub_api scrubber \
      | git mktree
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

FOLDERS = (
    "access",
    "autoclave",
    "benchmarks",
    "containers",
    "ground",
    "plugin",
    "policies",
    "remnant",
    "scrub_api",
    "scrubber",
)
MADE = (".pyc", ".ptx", ".cubin", "_pb2.pyi", "_pb2_grpc.pyi")  # git ignores them
CACHE = "__pycache__"


def tree(root: Path) -> str:
    """The hash of what stands there now, committed or not."""
    return _tree(root / name for name in FOLDERS).hex()


def _tree(paths: Iterator[Path]) -> bytes:
    entries = []
    for path in sorted(paths, key=lambda path: f"{path.name}/" if path.is_dir() else path.name):
        if path.is_symlink():
            entries.append(_entry("120000", path, _hash("blob", os.fsencode(path.readlink()))))
        elif path.is_dir():
            inside = _tree(it for it in path.iterdir() if it.name != CACHE and not it.name.endswith(MADE))
            entries += [_entry("40000", path, inside)] if inside != _hash("tree", b"") else []
        else:
            mode = "100755" if path.stat().st_mode & stat.S_IXUSR else "100644"
            entries.append(_entry(mode, path, _hash("blob", path.read_bytes())))
    return _hash("tree", b"".join(entries))


def _entry(mode: str, path: Path, digest: bytes) -> bytes:
    return f"{mode} {path.name}\0".encode() + digest


def _hash(kind: str, content: bytes) -> bytes:
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content, usedforsecurity=False).digest()
