"""Read the configuration of NVIDIA's container toolkit, and the CDI specifications of the node."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from autoclave.doctor.facts import safe_read
from autoclave.doctor.node_facts import CdiSpec, CheckFault, Node, Toolkit, ToolkitConfig, fact

# Paths of the toolkit's packages, and of the GPU operator.
CONFIGS = (
    "etc/nvidia-container-runtime/config.toml",
    "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
)
PROGRAMS = (
    "usr/bin/nvidia-container-runtime",
    "usr/bin/nvidia-container-runtime-hook",
    "usr/local/nvidia/toolkit/nvidia-container-runtime",
    "usr/local/nvidia/toolkit/nvidia-container-runtime-hook",
)
CDI = ("etc/cdi", "run/cdi", "var/run/cdi")
_ENVIRONMENT = "accept-nvidia-visible-devices-envvar-when-unprivileged"
_MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts"


@fact
def toolkit(node: Node) -> Toolkit:
    """The toolkit and each of its configurations. A file that cannot be read counts as present."""
    configs = (_config(node.host_root / place) for place in CONFIGS)
    installed = any(safe_read.there(node.host_root / program) is not False for program in PROGRAMS)
    return Toolkit(installed, tuple(config for config in configs if config is not None))


def _config(file: Path) -> ToolkitConfig | None:
    text = safe_read.text(file)
    if isinstance(text, CheckFault):
        return None if text.absent else ToolkitConfig(str(file), fault=text)
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        return ToolkitConfig(str(file), fault=CheckFault(f"it is not valid TOML: {error}"))
    environment, mounts = document.get(_ENVIRONMENT, True), document.get(_MOUNTS, False)  # the toolkit's defaults
    if not isinstance(environment, bool) or not isinstance(mounts, bool):
        return ToolkitConfig(str(file), fault=CheckFault("an option in it is neither true nor false"))
    return ToolkitConfig(str(file), environment, mounts)


@fact
def cdi(node: Node) -> tuple[CdiSpec, ...]:
    """Every specification in the directories that container runtimes read."""
    # Each directory once: /var/run is usually a link to /run, and under another root the link may lead elsewhere.
    linked = (node.host_root / "var/run").is_symlink()
    places = (place for place in CDI if not (linked and place.startswith("var/run/")))
    return tuple(spec for place in places for spec in specifications(node.host_root / place))


def specifications(directory: Path) -> Iterator[CdiSpec]:
    """The specifications in a directory, also those that cannot be used."""
    names = safe_read.names(directory)
    if isinstance(names, CheckFault):
        if not names.absent:
            yield CdiSpec(str(directory), fault=names)
        return
    for name in names:
        read = READERS.get(Path(name).suffix)
        if read is not None:
            file = directory / name
            text = safe_read.text(file)
            yield (
                CdiSpec(str(file), fault=text) if isinstance(text, CheckFault) else specification(str(file), text, read)
            )


def specification(path: str, text: str, read: Callable[[str], Any] = json.loads) -> CdiSpec:
    """What a text says as a specification; ``path`` is where it comes from."""
    try:
        document = read(text)
        names = [device["name"] for device in document.get("devices") or ()]
        kind = document["kind"]
    except (YAMLError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return CdiSpec(path, fault=CheckFault(f"it is not a CDI specification ({type(error).__name__})"))
    if not all(isinstance(each, str) for each in (kind, *names)):
        return CdiSpec(path, fault=CheckFault("it is not a CDI specification (a name that is not text)"))
    return CdiSpec(path, kind, frozenset(names))


READERS: dict[str, Callable[[str], Any]] = {
    ".json": json.loads,
    ".yaml": lambda text: YAML(typ="safe", pure=True).load(text),
}
