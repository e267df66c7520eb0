"""The shape of a policy file: ``schema.json`` for editors, and ``docs/policy-fields.md`` for people.

Both are generated from the model: ``python -m deploy.policy_schema > policies/schema.json``, and
``python -m deploy.policy_schema page > docs/policy-fields.md``.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from ground.documents.units import DURATION, format_duration
from policies.policy_model import KNOWN_UNITS, OPERATOR_PROGRAMS, STEP_SECONDS, PolicySet

HEADER = "| field | accepts | default | what it does |"
PAGE = """\
# Fields of a policy

Generated from `policies/policy_model.py`: run `make docs`. What the fields mean together is on [policies](policies.md).

All of these belong under `defaults`, or under the `policy` of a rule. Every field is optional.

{fields}

Three combinations are impossible: `evict.grace` or `selftest.time` not shorter than the deadline of its step, and
`reset.when: never` with a path `reset` under `paths`.

## Deadlines

The deadline of each step is multiplied by `timeouts`.

| step | deadline |
|---|---|
{deadlines}

## `match`

In the `match` of a rule, all given conditions must hold.

{match}

Write a UUID with its prefix `GPU-` or `MIG-`. Do not put an index in quotes.

## Always exempt

The [fence](policies.md#who-may-open-a-gpu) lets these units and control groups open a GPU without being named: NVIDIA's
daemons, container runtimes, and the groups of Talos for both.

{units}

## NVIDIA's programs in pods

In each of `evict.operator_namespaces`, these programs are
[bystanders](processes.md#which-programs-may-have-a-device-open):

{programs}
"""
LONG = 5  # items of a list; a longer one stands in the shipped file only

# Who may change each field, and when. Not each has been asked for: some of these are our own judgement.
USERS = {
    "mode": "SRE: the first days on a live cluster",
    "model": "security: containers of one pod do not trust each other",
    "receipts": "tenant: evidence in the container",
    "serial_in_receipts": "auditor: an inventory of hardware",
    "budgets.allocate": "SRE: other pods of the node wait as long",
    "paths.first_look": "security: a reset at first; trusted tenants: no test",
    "paths.new_tenant": "security: a test or a reset for each tenant",
    "timeouts": "SRE: large or busy GPUs, whose steps take longer",
    "evict.leftovers": "SRE: a trial that ends no process",
    "evict.foreign": "CI farm: every program of the node may be ended",
    "evict.grace": "Slurm, CI farm: jobs that save their work at TERM",
    "evict.bystanders": "SRE: monitors of your own",
    "evict.operator_namespaces": "platform: another namespace of the operator; security: fewer",
    "fence.mode": "security: who has no GPU opens none",
    "fence.exempt.units": "SRE: monitors on the host",
    "fence.lease": "security: longer; SRE: a node is free sooner",
    "reset.when": "platform: EC2 and vGPU, where a reset always fails",
    "settings.leave": "platform: power limits, clocks or modes of your own",
    "clear.passes": "auditor: three writes; trusted tenants: one",
    "clear.min_coverage": "security: more; platform: GPUs with a large context",
    "selftest.time": "SRE: rare defects, or GPUs back sooner",
    "proof.max_age": "security: no tenant relies on an old test",
    "quarantine.xids.preset": "SRE: the same verdict as NVIDIA's or GKE's plugin",
    "quarantine.xids.unknown": "SRE: a new driver with harmless codes",
    "quarantine.xids.codes": "SRE: a code that is harmless here, or is not",
    "quarantine.signs": "SRE: also heat, a slow slot, a ghost load",
    "quarantine.probation.first": "security: a fault has time to show",
    "quarantine.probation.flap_limit": "security: no second chance; SRE: fewer calls",
}

_KINDS = {
    "boolean": "`true`, `false`",
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "array": "list",
    "object": "mapping",
}


class _FileSchema(GenerateJsonSchema):
    """The schema of the file, without the nulls, titles and seconds that only Python uses."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """A key without a value is refused, so null is never valid."""
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Defaults as a file writes them. The defaults of a mapping are at its keys."""
        made = super().default_schema(schema)
        match made.get("default"):
            case None | dict():
                made.pop("default", None)
            case float() as seconds if made.get("type") == "string":
                made["default"] = format_duration(seconds)
        return made

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        for name, text in _field_texts(schema["cls"]):
            made["properties"][name]["description"] = text
        return made

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 - the name is the library's
        """Titles would repeat the keys."""
        return False


def _field_texts(model: type) -> Iterator[tuple[str, str]]:
    """The text below each field of a model. Read here, and not by pydantic at every start of a service."""
    parsed = ast.parse(inspect.getsource(model)).body[0]
    for field, text in pairwise(parsed.body if isinstance(parsed, ast.ClassDef) else ()):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as said)):
                yield name, inspect.cleandoc(said)


def render() -> str:
    """The JSON Schema of a policy file."""
    schema = PolicySet.model_json_schema(schema_generator=_FileSchema)
    return json.dumps({"$schema": GenerateJsonSchema.schema_dialect, **schema}, indent=2) + "\n"


def table(name: str) -> str:
    """The fields of a model and of its inner models, as a Markdown table in the order of the file."""
    models = json.loads(render())["$defs"]
    rows = _rows(models, name, "")
    if name == "Policy":
        return "\n".join((f"{HEADER} who changes it, and when |", "|---|---|---|---|---|", *map(_with_user, rows)))
    return "\n".join((HEADER, "|---|---|---|---|", *rows))


def page() -> str:
    """``docs/policy-fields.md``."""
    return PAGE.format(
        fields=table("Policy"),
        match=table("Match"),
        deadlines="\n".join(f"| `{step}` | {seconds:g} s |" for step, seconds in STEP_SECONDS.items()),
        units=_list(KNOWN_UNITS),
        programs=_list(OPERATOR_PROGRAMS),
    )


def _list(names: Iterable[str]) -> str:
    return "\n".join(f"* `{name}`" for name in names)


def _rows(models: dict[str, Any], name: str, prefix: str) -> Iterator[str]:
    for key, field in models[name]["properties"].items():
        inner = field.get("$ref", "").rpartition("/")[2]
        if "properties" in models.get(inner, {}) and "description" not in field:
            yield from _rows(models, inner, f"{prefix}{key}.")
        else:
            items = models.get(field.get("items", {}).get("$ref", "").rpartition("/")[2], {})
            accepts = f"list of {_accepts(items)}" if "enum" in items else _accepts({**models.get(inner, {}), **field})
            yield f"| `{prefix}{key}` | {accepts} | {_written(field)} | {field['description']} |"


def _with_user(row: str) -> str:
    """The row of a field, with who needs the field."""
    return f"{row} {USERS[row.split('`')[1]]} |"


def _written(field: dict[str, Any]) -> str:
    """The default as a file writes it. ``autoclave policy show default`` has the long lists."""
    match field.get("default"):
        case None:
            return ""
        case list() as items if len(items) > LONG:
            return f"{len(items)} items"
        case default:
            return "`" + json.dumps(default).strip('"') + "`"


def _accepts(field: dict[str, Any]) -> str:
    match field:
        case {"enum": words}:
            return ", ".join(f"`{word}`" for word in words)
        case {"pattern": str() as pattern} if pattern == f"^{DURATION.pattern}$":
            return "duration"
        case {"type": kind}:
            return _KINDS[kind]
    raise ValueError(f"cannot describe what {field} accepts: add the type to this function")


if __name__ == "__main__":
    sys.stdout.write(page() if sys.argv[1:] == ["page"] else render())
