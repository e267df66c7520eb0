"""Facts about the scrub service: its answer, its sockets and directories, the key of its receipts, and its CuPy."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from autoclave.doctor.facts import safe_read
from autoclave.doctor.node_facts import CheckFault, Directory, LastError, Node, Python, Socket, fact
from ground import paths, unix_sockets
from ground.errors import AutoclaveError, Unreachable, joined
from scrub_api import views
from scrubber.cuda import cupy_loading, images
from scrubber.receipts import key
from scrubber.receipts.key import ReceiptError

PATIENCE = 10.0  # seconds to wait for a service that listens and is slow


@fact
def answer(node: Node) -> views.Status | AutoclaveError:
    """The status, or the error instead of it: the other findings matter most when the service does not answer.

    A connection attempt gives up soon. On a busy node that can be too soon, so a service that listens is asked again.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return node.ask(node.run_dir)
        except Unreachable as error:
            if unix_sockets.connect_error(paths.admin_socket(node.run_dir)) is not None or time.monotonic() > until:
                return error
        except AutoclaveError as error:
            return error


def status(node: Node) -> views.Status | None:
    """The service's answer, if it gave one."""
    status = answer(node)
    return status if isinstance(status, views.Status) else None


def answers(node: Node) -> bool:
    """Whether the service gave its status."""
    return status(node) is not None


@fact
def now(node: Node) -> float:
    """The wall time after the answer, which takes time."""
    answer(node)
    return time.time()


@fact
def last_error(node: Node) -> LastError | None:
    """The error that ended the service."""
    path = paths.last_error(node.run_dir)
    text = safe_read.text(path)
    if not isinstance(text, str):
        return None
    try:
        at = path.stat().st_mtime
    except FileNotFoundError:  # the service has just come back
        return None
    try:
        left = json.loads(text)
    except ValueError:  # of an older service
        return LastError(text.strip(), at)
    return LastError(left["message"], at, joined(*left.get("remedies", ())))


@fact
def scrubber_socket(node: Node) -> Socket:
    """The socket for the plugin."""
    return safe_read.socket(paths.scrubber_socket(node.run_dir))


@fact
def run_dir(node: Node) -> Directory:
    """The run directory, as the service looks at it: a link can be redirected, so it is none."""
    return safe_read.directory(node.run_dir, links=False)


@fact
def receipt_key(_node: Node, state_dir: str) -> str | CheckFault | None:
    """The id of the key that signs receipts; None if ``cryptography`` is missing."""
    try:
        return key.read_key(Path(state_dir)).key_id if key.can_sign() else None
    except ReceiptError as error:
        return CheckFault(error.message, remedy=joined(*error.remedies))


@fact
def cupy(_node: Node) -> Python:
    """Whether CuPy is installed for the Python of the doctor."""
    return Python(sys.executable, cupy_loading.missing() or "", cupy_loading.installed())


@fact
def kernels(_node: Node) -> bool:
    """Whether the installation of the doctor has compiled kernels."""
    return bool(images.present())


@fact
def on_kubernetes(_node: Node) -> bool:
    """Whether this is a node of Kubernetes: where it is not, no advice names a pod."""
    return paths.of_kubernetes()
