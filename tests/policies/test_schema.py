"""The schema for editors and the page for people agree with the model."""

import inspect
import json
import re
from importlib import resources
from pathlib import Path

import pytest
from pydantic import WithJsonSchema

from deploy import policy_schema as schema
from ground.documents import units
from ground.documents.faults import DocumentError
from policies import load
from policies.base_model import Model
from policies.policy_model import Match, Policy

DOCS = Path(__file__).parents[2] / "docs"
PAGE, FIELDS = (DOCS / "policies.md").read_text(), DOCS / "policy-fields.md"
SCHEMA = json.loads(schema.render())


def test_the_committed_schema_is_the_rendered_one():
    assert resources.files("policies").joinpath("schema.json").read_text() == schema.render()


def test_the_schema_forbids_null_and_unknown_keys():
    assert "null" not in schema.render()
    mappings = [SCHEMA, *(model for model in SCHEMA["$defs"].values() if model.get("type") == "object")]
    assert len(mappings) == 17
    assert all(model["additionalProperties"] is False for model in mappings)


def test_every_field_of_the_schema_is_explained():
    for model in (SCHEMA, *SCHEMA["$defs"].values()):
        for name, field in model.get("properties", {}).items():
            assert "description" in field or "description" in SCHEMA["$defs"][field["$ref"].split("/")[-1]], name


def test_defaults_in_the_schema_are_written_as_in_a_file():
    assert SCHEMA["$defs"]["Budgets"]["properties"]["allocate"]["default"] == "4s"


def test_the_committed_page_of_fields_is_the_rendered_one():
    assert FIELDS.read_text() == schema.page()


def test_the_tables_miss_no_field():
    rows = set(re.findall(r"^\| `([\w.]+)` \|", schema.page(), re.MULTILINE))
    assert {"budgets.allocate", "quarantine.probation.flap_limit", "mode"} <= rows
    assert set(Match.model_fields) <= rows
    assert {row.split(".")[0] for row in rows} >= set(Policy.model_fields)


def bounds(model, prefix=""):
    """The bounds of each duration, as a file writes them, but for zero."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if inspect.isclass(inner) and issubclass(inner, Model):
            yield from bounds(inner, f"{prefix}{name}.")
        elif any(isinstance(it, WithJsonSchema) for it in field.metadata):
            limits = [getattr(it, of) for it in field.metadata for of in ("gt", "ge", "lt", "le") if hasattr(it, of)]
            yield f"{prefix}{name}", [units.format_duration(limit) for limit in limits if limit]


def test_the_page_names_the_bounds_of_each_duration():
    rows = {row.split("`")[1]: row for row in schema.table("Policy").splitlines() if "`" in row}
    named = dict(bounds(Policy))
    assert (named["fence.lease"], named["budgets.allocate"]) == (["1m", "1d"], ["4s"])
    assert [name for name, limits in named.items() for limit in limits if limit not in rows[name].split("|")[4]] == []


def test_every_field_of_a_policy_has_a_user():
    named = re.findall(r"^\| `([\w.]+)` \|", schema.table("Policy"), re.MULTILINE)
    assert list(schema.USERS) == named


def test_the_examples_of_the_page_behave_as_shown():
    good, bad, *fragments = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    for fragment in fragments:
        assert load.load_text(f"name: part\n{fragment}", "part.yaml").rules
    assert load.load_text(good, "rack.yaml").rules[0].name == "h100"
    with pytest.raises(DocumentError) as caught:
        load.load_text(bad, "rack.yaml")
    assert f"```text\n{caught.value}\n```" in PAGE
