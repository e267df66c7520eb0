"""One word for each thing: words that were replaced appear in no name of the product or of the tests.

``docs/glossary.md`` explains the words that are used instead.
"""

import ast
import re

from tests.house.sources import HOUSES, ROOT, WRITTEN, modules, place

REPLACED = {
    "asker": "opener",
    "claimant": "the starting pod",
    "comeback": "pending restore",
    "exposed": "in use",
    "eye": "observer",
    "figure": "metric",
    "glance": "quick observation",
    "grounds": "ownership, proof, pauses, siblings",
    "heard": "reported",
    "illness": "ailment",
    "intruder": "holder, foreign process",
    "mend": "restore, repair",
    "nobody": "the actor's name: no holder, no owner",
    "owed": "pending restore, due",
    "presence": "absence",
    "rightful": "owner",
    "sickness": "ailment",
    "sight": "observer",
    "stranger": "foreign process",
    "symptom": "sign",
    "tally": "counters",
    "testimony": "reading of a use counter",
    "told": "reported, sent",
    "visit": "observation",
    "visitor": "unannounced pod",
    "whoever": "the actor's name",
    "witness": "use counter",
    "zombie": "leftover",
}
CONTRACTS = {
    "autoclave/cli/verbs/simulate.py": {"zombie"},  # the drill that the command line calls so
    "scrub_api/measurements.py": {"witness"},  # of receipts, which are signed
    "scrubber/config.py": {"sight", "SightMode"},  # the flag --sight
    "scrubber/devices/simulated/drills.py": {"zombie"},  # what that drill starts
}
OLD_WORDS = (  # folders of tests whose names are still to be changed
)


def names(tree: ast.AST):
    """Every name that a module defines, imports under another name, or assigns to."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.alias(asname=str(name)):
                yield name
            case _:
                pass


def words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def changed_modules():
    return ((file, tree) for file, tree in modules(*HOUSES, "tests") if not place(file).startswith(OLD_WORDS))


def test_no_name_contains_a_replaced_word():
    replaced = {*REPLACED, *(f"{word}s" for word in REPLACED)}
    found = []
    for file, tree in changed_modules():
        defined = {*names(tree), *file.relative_to(ROOT).with_suffix("").parts} - CONTRACTS.get(place(file), set())
        found += [f"{place(file)}: {name}" for name in sorted(defined) if words(name) & replaced]
    assert found == []


def test_the_name_of_a_test_has_at_most_ten_words():
    named = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
    assert [
        f"{place(file)}: {name}"
        for file in WRITTEN
        if not place(file).startswith(OLD_WORDS)
        for name in named.findall(file.read_text())
        if len(name.split("_")) > 11
    ] == []


def test_words_of_a_name_are_found_in_any_spelling():
    assert words("_newestVisitors_TOLD") == {"newest", "visitors", "told"}
