"""The receipts that tenants find in their containers: a directory for each hand-over, with two files.

The name of a directory is the id of its hand-over, the tenancy that the receipts are for: an HMAC under the node's
secret.

Rule 1: the directories of the present and of the next hand-over of each device exist, so that no container has to wait
        for one. A directory is removed when its tenancy has ended. If a reboot or a reload of the driver has ended it,
        its containers may start again with their mount: then the directory stays, without files, until its device has
        another tenant.
Rule 2: the files of a directory are those of the receipt on which the device was, or is, given to this tenant. Nobody
        sees a part of a file, or a document without its proof.
Rule 3: an error costs a tenant its receipt, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from ground import log, private_files
from scrubber.core.record import Record, Tenancy

logger = log.get("receipts")

ENVELOPE, PROOF = "receipt.dsse.json", "receipt.tlog-proof"
CLOSING, CLOSING_PROOF = "closing.dsse.json", "closing.tlog-proof"  # written by an export only
MAY_PASS, MAY_READ = 0o711, 0o755  # the directory of all tenants, and those of each: the service's own is above, 0700
FILE = 0o644  # mounted read-only; `rm -r` of the state directory asks a person about each file without write permission
EARLIER = 100_000  # tenancies of a device: at ten an hour, of a year


def handover_id(secret: bytes, device: str, tenancy: int) -> str:
    """The id of the tenancy of this number, which nobody without the node's secret can guess.

    It changes when a tenancy ends, also by a reboot, and stays the same over restarts of the service and the container.
    """
    text = f"{device}\n{tenancy!r}"
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()[:24]


def found_handover(
    secret: bytes, device: str, newest: int, begins: Iterable[int], is_right: Callable[[str], bool]
) -> str:
    """The id of the tenancy that is the right one, from a newest number downwards; empty if there is none.

    ``begins``: the numbers from which the device has begun to count its tenancies: each is far above those before it.
    """
    numbers = (range(newest, max(newest - EARLIER, 0), -1), *(range(first, first + EARLIER) for first in begins))
    ids = (handover_id(secret, device, number) for number in chain.from_iterable(numbers))
    return next(filter(is_right, ids), "")


def owner_digest(secret: bytes, handover: str, owner: str) -> str:
    """The last owner under the node's secret; empty without one.

    It differs in each hand-over, so that two tenants cannot find out that they followed the same owner.
    """
    text = f"owner\n{handover}\n{owner}"
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()[:32] if owner else ""


class TenantFiles:
    """The directories and files of all devices. Kept in line with the ledger row by row; one thread at a time."""

    def __init__(self, directory: Path, secret: bytes) -> None:
        """``directory``: for all hand-overs, in the state directory. ``secret``: the node's, for their ids."""
        self._directory = directory
        self._secret = secret

    def handover(self, record: Record) -> str:
        """The id of the present hand-over of a device, or of the next one while nobody has the device."""
        return handover_id(self._secret, record.device.uuid, record.tenancy.number)

    def path(self, record: Record) -> Path:
        """The directory of that hand-over."""
        return self._directory / self.handover(record)

    def path_if_requested(self, record: Record) -> Path:
        """The directory for a pod that is given the device now, also if the last tenant is not known to have left."""
        not_left = record.tenancy.start_admitted or record.tenancy.awaits != ""
        return self._path(record, record.tenancy.number + not_left)

    def _path(self, record: Record, tenancy: int) -> Path:
        return self._directory / handover_id(self._secret, record.device.uuid, tenancy)

    def reconcile(self, records: Iterable[Record]) -> None:
        """Make what should be there, and remove everything else, such as what an older ledger knew or a crash left."""
        records = tuple(records)
        names = {path.name for record in records for path in self._paths(record)}
        with _reported(""):
            _make(self._directory, MAY_PASS)
            for path in self._directory.iterdir():
                if path.name not in names:
                    _remove(path)
        for record in records:
            with _reported(record.device.uuid):
                for path in self._paths(record):
                    _make(path, MAY_READ)
                if not _is_of(record, self.path(record) / ENVELOPE):
                    self._put(self.path(record), {})
                self._empty_held(record)

    def changed(self, before: Record | None, after: Record, envelope: str, proof: str) -> None:
        """Bring the files in line with one row.

        ``envelope``, ``proof``: the files of a receipt that the row gives; empty: not signed.
        """
        with _reported(after.device.uuid):
            if before is None or _hand_overs(before.tenancy) != _hand_overs(after.tenancy):
                old, new = self._paths(before) if before is not None else (), self._paths(after)
                for path in new:
                    if path not in old:
                        _make(path, MAY_READ)
                for path in old:
                    if path not in new:
                        _remove(path)
                self._empty_held(after)
            if before is None or _receipt(after) != _receipt(before):
                given = after.scrubs.receipt is not None and envelope
                self._put(self.path(after), {PROOF: proof, ENVELOPE: envelope} if given else {})

    def _paths(self, record: Record) -> list[Path]:
        """The directories of a device. The last two are those of the present and the next hand-over."""
        return [self._path(record, number) for number in _hand_overs(record.tenancy)]

    def _empty_held(self, record: Record) -> None:
        for path in self._paths(record)[:-2]:
            self._put(path, {})

    def _put(self, folder: Path, files: Mapping[str, str]) -> None:
        """Replace the files of a directory: the document goes first, and comes last."""
        _make(folder, MAY_READ)
        for name in (ENVELOPE, PROOF):
            (folder / name).unlink(missing_ok=True)
        for name, text in files.items():
            # Made where no container sees it. It is of no use after a power loss: with another boot, no proof holds.
            with private_files.beside(self._directory / name, text.encode(), FILE, durable=False) as aside:
                aside.replace(folder / name)


def withdraw(directory: Path) -> None:
    """Remove the receipts that an earlier service has signed, where this one cannot sign newer ones.

    The directories stay: a container that has one among its mounts cannot start without it.
    """
    with _reported(""):
        for path in directory.glob("*/*"):
            path.unlink()


def _hand_overs(tenancy: Tenancy) -> range:
    """The numbers of the hand-overs whose directories exist."""
    return range(tenancy.number if tenancy.held_from is None else tenancy.held_from, tenancy.number + 2)


def _receipt(record: Record) -> str | None:
    """The id of the receipt that the tenant of a device may have, or the next one. A use ends the proof, and not it."""
    if record.scrubs.receipt is not None:
        return record.scrubs.receipt.id
    return record.tenancy.grant.receipt if record.tenancy.grant is not None else None


def _is_of(record: Record, envelope: Path) -> bool:
    """Whether the file is the receipt that the tenant of the device may have: the newest one, unless it has ended."""
    if _receipt(record) is None or not envelope.exists():
        return False
    try:
        statement = json.loads(base64.b64decode(json.loads(private_files.content(envelope))["payload"]))
        return any(subject["digest"]["sha256"] == record.scrubs.last_receipt for subject in statement["subject"])
    except (private_files.ForeignFileError, ValueError, LookupError, TypeError, RecursionError):  # cut off, or planted
        return False


def _make(folder: Path, mode: int) -> None:
    private_files.make_folder(folder)
    folder.chmod(mode)


def _remove(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)


@contextmanager
def _reported(device: str) -> Iterator[None]:
    """Log an error of the disk, or of a file that is not ours, and go on: no device waits for its receipt.

    The log leaves the node, so the path is left out: it contains the id of a hand-over.
    """
    try:
        yield
    except OSError as error:
        logger.error("cannot keep the receipts of containers", device=device, error=error.strerror)  # noqa: TRY400 - expected
