"""Facts about the values that Helm gives to the chart."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ground.documents.faults import describe
from ground.errors import FatalError

Values = Mapping[str, Any]
SECTIONS = ("policy", "scrubber", "plugin")  # those of the values that a check of an update reads


def read_values(path: Path) -> Values:
    """The values in a file for Helm, which may have none; FatalError if it is not such a file."""
    remedy = "name the file that Helm gets; `helm get values RELEASE -n NAMESPACE -o yaml` prints it"
    try:
        found = YAML(typ="safe", pure=True).load(path.read_text("utf-8-sig"))
    except OSError as error:
        raise FatalError(f"cannot read the values {path}: {error.strerror}", remedy) from error
    except UnicodeDecodeError as error:
        raise FatalError(f"cannot read the values {path}: it is not UTF-8 text", remedy) from error
    except (YAMLError, ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]
        raise FatalError(f"cannot read the values {path}: it is not YAML ({why})", remedy) from error
    sections = [(f"{name}: ", found[name]) for name in SECTIONS if name in found] if isinstance(found, dict) else []
    for place, section in [("", found), *sections]:
        if not isinstance(section, dict | None):
            text = f"cannot read the values {path}: {place}found {describe(section)}, expected a mapping"
            raise FatalError(text, remedy)
    return found or {}


def former_values() -> Mapping[str, str]:
    """The values of older versions that change nothing any more, each with the reason."""
    text = resources.files("autoclave.doctor").joinpath("former_values.yaml").read_text("utf-8")
    former: Mapping[str, str] = YAML(typ="safe", pure=True).load(text)
    return former


def value_of(values: Values, name: str) -> Any:  # noqa: ANN401 - of any type
    """The value of a name such as ``policy.fence``; None if it is not given."""
    found: Any = values
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found
