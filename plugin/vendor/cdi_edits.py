"""What CDI devices do to a container, by the specifications of a vendor: which GPUs they give to it.

The rule is strict, because a mistake here would give a container a GPU that was not proven clean. Device nodes and
mounts must have one of the forms that NVIDIA's programs write, and no text may name another GPU, by UUID, by PCI
address or by device node. A specification is read as container runtimes read it: the case of a key does not matter.
"""

from __future__ import annotations

import errno
import importlib
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ground.documents import strict_json
from ground.errors import InvalidRequest
from plugin.devices import pci_bus_id
from plugin.vendor import device_nodes
from scrub_api.device_messages import ReportedDevice

LARGEST = 2**20  # bytes of a specification: those of NVIDIA's programs have some ten thousand
LONGEST = 4096  # characters of a text: the longest path of the kernel

Edits: TypeAlias = Mapping[str, Any]  # what a specification does to a container, with keys in lower case

_FORMATS = {".json", ".yaml", ".yml"}
_NODE = re.compile(r"/dev/(nvidia[0-9]+|nvidia-caps/nvidia-cap[0-9]+)(?![0-9A-Za-z])")
_VARIABLE = "NVIDIA_VISIBLE_DEVICES="
_NOTHING = {"", "none", "void"}
_HIDES = (b"\\", b"!", b"\0")  # in a specification: a name may be written otherwise than by its characters
_PARTS = {"env": str, "devicenodes": Mapping, "mounts": Mapping, "hooks": Mapping, "additionalgids": int}
_SETTINGS = {"X11", "egl", "glvnd", "nvidia", "vulkan"}  # directories of settings for graphics, and of firmware
_OTHERS = (
    "/nvidia-fabricmanager/socket", "/nvidia-persistenced/socket", "/etc/cufile.json", "/run/udev",
    "/OpenCL/vendors/nvidia.icd",
)  # fmt: skip


def check(
    cdi_ids: Collection[str],
    directories: Collection[Path],
    taken: Collection[ReportedDevice],
    reported: Collection[ReportedDevice],
) -> list[Edits]:
    """What these CDI devices do.

    Raises InvalidRequest if one cannot be read, or gives away a device that is not taken.
    """
    edits = [{"names": list(cdi_ids)}, *_edits(cdi_ids, directories)]
    for each in edits:
        if why := fault(each, taken, reported):
            raise InvalidRequest(f"a CDI device of the answer {why}")
    return edits


def gives(edits: Collection[Edits], device: ReportedDevice) -> bool:
    """Whether a container gets the device by these edits: all nodes of the device, or its UUID if no node is known."""
    if device.nodes:
        return {str(node.get("path")) for each in edits for node in each.get("devicenodes") or ()} >= {*device.nodes}
    return any(device.uuid.lower() in text.lower() for each in edits for text in _texts(each))


def fault(edits: Edits, taken: Collection[ReportedDevice], reported: Collection[ReportedDevice]) -> str:
    """Why a container that was given the devices of ``taken`` must not have these edits; empty if it may."""
    theirs = {device.uuid.lower() for device in reported} - {device.uuid.lower() for device in taken}
    theirs |= {pci_bus_id(device) for device in reported} - {pci_bus_id(device) for device in taken} - {""}
    words = re.compile("|".join(map(re.escape, sorted(theirs))) or "(?!)")
    for text in _texts(edits):
        if len(text) > LONGEST:
            return f"has a text of {len(text)} characters, and the longest allowed has {LONGEST}"
        if foreign := _foreign(text, taken, words) or _foreign(device_nodes.shortest(text), taken, words):
            return f"names {foreign}, which was not granted"
    for node in edits.get("devicenodes") or ():
        if why := device_nodes.fault(node, taken):
            return why
    simulated = tuple(f"/gpu{device.index}/{file}" for device in taken for file in ("memory", "scratch"))
    for mount in edits.get("mounts") or ():
        path = str(mount.get("hostpath") or "")
        if not (device_nodes.plain(path) and (_of_driver(path) or path.endswith(simulated))):
            return f"mounts {path!r}, which is not a file of NVIDIA's driver"
    return ""


def _of_driver(path: str) -> bool:
    """Whether NVIDIA's programs mount this path: a file or a socket of the driver, or a directory of MPS."""
    *parents, name = path.split("/")
    if "dev" in parents:
        return False
    if name.endswith((".bin", ".conf", ".json")) and not _SETTINGS.isdisjoint(parents):
        return True
    is_library, is_program = name.endswith(".so") or ".so." in name, name.startswith("nvidia-")
    of_claim = name in ("pipe", "shm") and parents[-2:-1] == ["mps"]  # for one claim, by NVIDIA's DRA driver
    return is_library or is_program or of_claim or path.endswith(_OTHERS)


def _foreign(text: str, taken: Collection[ReportedDevice], words: re.Pattern[str]) -> str:
    """The first name in a text that belongs to a device that is not taken. ``words``: UUIDs and PCI addresses."""
    low = text.lower()
    if name := words.search(low):
        return name[0]
    own = {node for device in taken for node in device.nodes}
    if name := next((match for match in _NODE.finditer(text) if match[0] not in own), None):
        return name[0]
    if not text.startswith(_VARIABLE):
        return ""
    uuids = {device.uuid.lower() for device in taken}
    return text if {*low.removeprefix(_VARIABLE.lower()).split(",")} - uuids - _NOTHING else ""


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


def _edits(cdi_ids: Collection[str], directories: Iterable[Path]) -> list[Edits]:
    """All that these CDI devices do to a container, in every specification that has one of them."""
    edits: list[Edits] = []
    missing, wanted = set(cdi_ids), frozenset(cdi_ids)
    for file in sorted(file for directory in directories for file in _files(directory)) if cdi_ids else ():
        try:
            document = _read(file, cdi_ids)
            devices = [(f"{document['kind']}={_name(device)}", device) for device in document.get("devices") or ()]
            asked = [(name, _form(device)) for name, device in devices if name in wanted]
            edits += [_form(document), *(form for _, form in asked)] if asked else []
        except FileNotFoundError:
            continue  # of a claim that has just ended
        except Exception as error:  # a parser fails in many ways on a broken file
            why = (isinstance(error, OSError) and error.strerror) or type(error).__name__
            raise InvalidRequest(f"cannot read the CDI specification {file.name}: {why}") from error
        missing -= {name for name, _ in asked}
    if missing:
        raise InvalidRequest(f"no CDI specification of this node has the device {min(missing)}", "see --cdi-dir")
    return edits


def _files(directory: Path) -> list[Path]:
    try:
        return [file for file in directory.iterdir() if file.suffix in _FORMATS]
    except FileNotFoundError:
        return []


def _read(file: Path, cdi_ids: Iterable[str]) -> Edits:
    """The specification, if it may have one of the devices: a node may have a hundred others, which are not parsed."""
    state = file.stat()
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    if state.st_size > LARGEST:
        raise OSError(errno.EFBIG, f"it is larger than {LARGEST} bytes")
    text = file.read_bytes()
    if not any(sign in text for sign in (*_HIDES, *(cdi_id.partition("=")[2].encode() for cdi_id in cdi_ids))):
        return {}
    folded = _folded(strict_json.parse(text) if file.suffix == ".json" else _yaml(text))
    if not isinstance(folded, Mapping):
        raise TypeError
    return folded


def _yaml(text: bytes) -> object:
    """The YAML document in a text.

    Raises ValueError if a mapping has a key twice, because PyYAML drops the first value.
    """
    # Imported by name: only this mode needs it, and the client library of the API server brings it.
    loader = importlib.import_module("yaml").SafeLoader(text)
    usual = loader.construct_mapping

    def strict(node: Any, deep: bool = False) -> Mapping[object, object]:  # noqa: ANN401, FBT001, FBT002 - as in PyYAML
        mapping: Mapping[object, object] = usual(node, deep)
        if len(mapping) < len(node.value):
            raise ValueError("a key twice")
        return mapping

    loader.construct_mapping = strict
    document: object = loader.get_single_data()
    return document


def _folded(value: object) -> object:
    """The value with all keys in lower case. Raises ValueError if two keys of one mapping differ only in their case."""
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


def _name(device: Edits) -> str:
    """The name of a device; TypeError if it is not text: runtimes and our parser would read it differently."""
    if not isinstance(device["name"], str):
        raise TypeError
    return device["name"]


def _form(document: Edits) -> Edits:
    """The edits of a specification or of one of its devices; TypeError if a part has another form than in CDI."""
    edits = document.get("containeredits") or {}
    if not isinstance(edits, Mapping) or not edits.keys() <= _PARTS.keys():
        raise TypeError
    for key, values in edits.items():
        if not isinstance(values, list | None) or not all(isinstance(each, _PARTS[key]) for each in values or ()):
            raise TypeError
        for each in values or ():
            if isinstance(each, Mapping) and not all(map(_is_flat, each.values())):
                raise TypeError
    return edits


def _is_flat(value: object) -> bool:
    return isinstance(value, str | int | None) or (
        isinstance(value, list) and all(isinstance(entry, str) for entry in value)
    )
