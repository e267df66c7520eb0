"""Docstrings and comments name only modules, functions, fields, settings and flags that exist."""

import ast
import io
import re
import tokenize
import typing
from functools import cache

import pytest
from pydantic import BaseModel

from policies.policy_model import Policy
from tests.house.sources import HOUSES, modules, place

ROOMS = tuple(house for house in HOUSES if house not in ("demo", "dashboards"))  # those two quote other projects
NAME = re.compile(r"``([a-z_]\w*(?:\.[a-z_]\w*)*|--[a-z][a-z-]+)(?:\(\))?``")
FILES = (".c", ".h", ".json", ".md", ".proto", ".py", ".sock", ".toml", ".yaml")
OTHERS = {"cupy", "dataclasses", "blkdev_flush_mapping", "cgroupRoot"}  # of Python, of Linux, of the kubelet
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def settings(model: type[BaseModel], before: str = "") -> typing.Iterator[str]:
    """The names of all fields of a policy, with the names of their parts before them."""
    for name, field in model.model_fields.items():
        yield before + name
        for kind in (field.annotation, *typing.get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from settings(kind, f"{before}{name}.")


def docstrings(tree: ast.Module) -> list[str]:
    return [ast.get_docstring(node, clean=False) or "" for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]


@cache
def words() -> frozenset[str]:
    """Each identifier of the product, and each word of a text in it that is not a docstring."""
    found = set()
    for _, tree in modules(*ROOMS):
        prose = set(docstrings(tree))
        for node in ast.walk(tree):
            names = [getattr(node, field, None) for field in ("name", "arg", "id", "attr", "asname")]
            found |= {name for name in names if isinstance(name, str)}
            if isinstance(node, ast.alias):
                found |= set(node.name.split("."))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in prose:
                found |= set(re.findall(r"--[a-z][a-z-]+|\w+", node.value))
    return frozenset(found)


@cache
def defined() -> dict[str, frozenset[str]]:
    """What each module defines and imports, by its dotted name; under an empty name, the fields of all classes."""
    found: dict[str, frozenset[str]] = {}
    fields = set()
    for path, tree in modules(*ROOMS):
        inner = set()
        for node in ast.walk(tree):
            inner |= {name for field in ("name", "asname") if isinstance(name := getattr(node, field, None), str)}
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                inner.add(node.id)
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                fields.add(node.target.id)
        found[place(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")] = frozenset(inner)
    return found | {"": frozenset(fields)}


def exists(name: str) -> bool:
    """Whether the product has what this name says: ``module.function``, ``value.field``, ``part.setting``, a word."""
    head, dot, last = name.rpartition(".")
    if not dot:
        return name in words() or any(name in module.split(".") for module in defined())
    named = [inner for module, inner in defined().items() if f".{module}".endswith(f".{head}")]
    return (
        any(last in inner for inner in named)
        or any(f".{name}." in f".{module}." for module in defined())
        or set(name.split(".")) <= defined()[""]
        or name in set(settings(Policy))
    )


def test_docstrings_and_comments_name_only_what_exists():
    stale = []
    for path, tree in modules(*ROOMS):
        tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
        stale += [
            f"{place(path)}: {name}"
            for name in NAME.findall("\n".join([*docstrings(tree), *comments]))
            if not name.endswith(FILES) and name.partition(".")[0] not in OTHERS and not exists(name)
        ]
    assert stale == []


@pytest.mark.parametrize(
    "name", ["acquire.distrust", "core.observation", "tenancy.owner", "evict.foreign", "due_path", "--standby"]
)
def test_a_name_of_the_product_is_found(name):
    assert exists(name)


@pytest.mark.parametrize(
    "name", ["acquire.hand_back", "core.questions", "tenancy.landlord", "evict.owner_wait", "due_road", "--create-gate"]
)
def test_a_name_that_has_gone_is_not_found(name):
    assert not exists(name)
