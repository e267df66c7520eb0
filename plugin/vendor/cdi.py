"""The CDI specifications that a vendor's driver names in its answers: which GPUs they give to a container.

The rule is simple, because a mistake here would give a container a GPU that was not proven clean: no text of the
specification may name another GPU, by UUID, by PCI address or by device node. A specification is read as container
runtimes read it: the case of a key does not matter, and one path has many spellings.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from plugin.devices import pci_bus_id
from scrubber.ground.device_messages import AdvertisedDevice
from scrubber.ground.errors import InvalidRequest

_FORMATS = {".json", ".yaml", ".yml"}
_NODE = re.compile(r"/dev/(nvidia[0-9]+|nvidia-caps/nvidia-cap[0-9]+)(?![0-9A-Za-z])")
_SAME = re.compile(r"/(?:\.?/)+")  # of a path: two slashes, or the directory itself
_WAY_UP = re.compile(r"/(?!\.\./)[^/]+/\.\.(?=/|$)")  # of a path: into a directory, and out of it
_OF_DEVICES = re.compile(r"(.*/dev(/nvidia-caps)?)?/?")  # a directory with the nodes of all devices
_NUMBER = re.compile(r"[0-9]+$")
_VARIABLE = "NVIDIA_VISIBLE_DEVICES="
_NOTHING = {"", "none", "void"}


def check(
    cdi_ids: Iterable[str],
    directories: Collection[Path],
    taken: Collection[AdvertisedDevice],
    known: Collection[AdvertisedDevice],
) -> None:
    """Raise InvalidRequest if one of these CDI devices cannot be read, or gives away a device that is not taken."""
    for cdi_id in cdi_ids:
        for each in (cdi_id, *edits(cdi_id, directories)):
            if found := foreign(each, taken, known):
                raise InvalidRequest(f"the CDI device {cdi_id} names {found}, which was not granted")


def names(device: AdvertisedDevice, edits: object) -> bool:
    """Whether these edits name the device: by its UUID, or by all of its nodes."""
    texts = list(_texts(edits))
    uuid = device.uuid.lower()
    return any(uuid in text.lower() for text in texts) or (
        bool(device.nodes) and all(any(text.endswith(node) for text in texts) for node in device.nodes)
    )


def foreign(edits: object, taken: Collection[AdvertisedDevice], known: Collection[AdvertisedDevice]) -> str:
    """The first thing in an object of CDI that belongs to another device than those taken; empty: there is none."""
    nodes = {node for device in taken for node in device.nodes}
    uuids = {device.uuid.lower() for device in taken}
    edits = _folded(edits)
    theirs = {device.uuid.lower() for device in known} - uuids
    theirs |= {pci_bus_id(device) for device in known} - {pci_bus_id(device) for device in taken} - {""}
    for text in chain.from_iterable((it, _resolved(it)) for it in _texts(edits)):
        low = text.lower()
        if found := next((word for word in sorted(theirs) if word in low), ""):
            return found
        if found := next((match[0] for match in _NODE.finditer(text) if match[0] not in nodes), ""):
            return found
        if text.startswith(_VARIABLE) and set(low.removeprefix(_VARIABLE.lower()).split(",")) - uuids - _NOTHING:
            return text
    return next(chain(_misnumbered(edits), _directories(edits)), "")


def _folded(value: object) -> object:
    """The same with all keys in lower case. ValueError if two keys of one mapping differ in their case only."""
    match value:
        case Mapping():
            folded = {str(key).lower(): _folded(each) for key, each in value.items()}
            if len(folded) < len(value):  # a runtime merges them
                raise ValueError("a key twice")
            return folded
        case list() | tuple():
            return [_folded(each) for each in value]
        case _:
            return value


def _resolved(text: str) -> str:
    """The shortest spelling of the paths in a text."""
    text, count = _SAME.sub("/", text), 1
    while count:
        text, count = _WAY_UP.subn("", text, count=1)
    return text


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for each in value.items():
                yield from _texts(each)
        case list() | tuple():
            for each in value:
                yield from _texts(each)
        case _:
            return


def _misnumbered(edits: object) -> Iterator[str]:
    """Device nodes whose number is not the one in their name: the kernel goes by the number."""
    parts = edits if isinstance(edits, Mapping) else {}
    for node in parts.get("devicenodes") or ():
        path = str(node.get("hostpath") or node.get("path") or "")
        number = _NUMBER.search(path)
        # With a major number, a minor number that is left out is 0: NVIDIA's driver leaves it out.
        if _NODE.search(path) and number and node.get("major") and node.get("minor", 0) != int(number[0]):
            yield f"{path} with the number {node.get('minor', 0)}"


def _directories(edits: object) -> Iterator[str]:
    """Mounts of a directory that has the device nodes of all GPUs."""
    parts = edits if isinstance(edits, Mapping) else {}
    for mount in parts.get("mounts") or ():
        path = str(mount.get("hostpath") or "")
        if _OF_DEVICES.fullmatch(_resolved(path)):
            yield f"all devices in {path.rstrip('/') or '/'}"


def edits(cdi_id: str, directories: Iterable[Path]) -> list[object]:
    """All that this CDI device does to a container, in every specification that has it."""
    kind, _, name = cdi_id.partition("=")
    found: list[object] = []
    for specification in _specifications(name, directories):
        devices = [it for it in specification.get("devices") or () if it.get("name") == name]
        if specification.get("kind") == kind and devices:
            found += [specification.get("containeredits"), *(it.get("containeredits") for it in devices)]
    if not found:
        raise InvalidRequest(f"no CDI specification of this node has the device {cdi_id}; see --cdi-dir")
    return found


def _specifications(name: str, directories: Iterable[Path]) -> Iterator[Mapping[str, Any]]:
    """The specifications that may have this name: a node may have a hundred others, which are not parsed."""
    for file in sorted(file for directory in directories for file in _files(directory)):
        try:
            text = file.read_bytes()
            if name.encode() in text:
                yield _parsed(file, text)
        except FileNotFoundError:
            continue  # of a claim that has just ended
        except Exception as error:  # a parser fails in many ways on a broken file
            raise InvalidRequest(f"cannot read the CDI specification {file.name}: {type(error).__name__}") from error


def _files(directory: Path) -> list[Path]:
    try:
        return [file for file in directory.iterdir() if file.suffix in _FORMATS]
    except FileNotFoundError:
        return []


def _parsed(file: Path, text: bytes) -> Mapping[str, Any]:
    # Imported by name: only this mode needs it, and the client library of the API server brings it.
    is_json = file.suffix == ".json"
    document = json.loads(text) if is_json else importlib.import_module("yaml").safe_load(text)
    folded = _folded(document)
    if not isinstance(folded, Mapping):
        raise TypeError
    return folded
