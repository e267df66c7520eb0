"""What the documentation says of the code is what the code says of itself."""

import re
import tomllib
import typing
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from policies import load
from policies.hardware import DeviceSign
from policies.policy_model import STEP_SECONDS
from scrubber.core import events, plans, states
from scrubber.core.model import ScrubPath, State, Step
from scrubber.ledger import database
from tests.house.sources import FENCED, FILES, HOUSES, place

ROOT = Path(__file__).parents[2]
STATES = (ROOT / "docs" / "states.md").read_text()
DEFAULT = " ".join(load.read_shipped("default").replace("#", "").split())  # without line breaks of comments
WIDTH = 120
WHOLE = re.compile(r"`[^`]*`|\]\([^)]*\)")  # code and targets of links, which a line break would damage
STAND_IN = ROOT / "demo" / "standins" / "README.md"
DRAWN = re.compile(r"<!-- drawn from the table: begin -->\n(.*)<!-- drawn from the table: end -->", re.DOTALL)


def rows(title):
    """The first words, and the sentences, of the table under a heading."""
    part = STATES.split(f"## {title}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", part, re.MULTILINE))


def test_the_state_diagram_shows_the_transition_table():
    found = DRAWN.search(STATES)
    assert found
    fence, head, first, *arrows, end = found[1].splitlines()
    assert [fence, head, first, end] == ["```mermaid", "stateDiagram-v2", "    [*] --> unknown: Discovered", "```"]
    drawn = [re.fullmatch(r" {4}(\w+) --> (\w+): (\w+(?:, \w+)*)", arrow) for arrow in arrows]
    moves = {(arrow[1], name, arrow[2]) for arrow in drawn if arrow for name in arrow[3].split(", ")}
    table = ((state, kind, to) for state, row in states.TABLE.items() for kind, to in row.items() if to is not state)
    assert all(drawn)
    assert moves == {(state.value, kind.__name__, to.value) for state, kind, to in table}


def added(steps, before):
    """The steps that a shorter path has not, each with the step that it follows."""
    pairs = pairwise(step.value for step in steps)
    return ", ".join(f"{step} after {last}" for last, step in pairs if Step(step) not in before)


def test_the_pages_list_the_steps_of_each_path():
    listed = dict(re.findall(r"^\| (\w+) \| (\w+, [a-z, ]+) \|$", STATES, re.MULTILINE))
    assert listed == {path.value: ", ".join(step.value for step in plan) for path, plan in plans.PLANS.items()}
    fast, slow, reset = (plans.PLANS[path] for path in ScrubPath)
    paths = f"Path fast: {listed['fast']}. Path slow: the same, with {added(slow, fast)}."
    assert f"{paths} Path reset: the slow path, with {added(reset, slow)}." in DEFAULT


def test_the_pages_explain_each_sign():
    signs = [sign.value for sign in DeviceSign]
    nvidia = (ROOT / "docs" / "nvidia.md").read_text()
    comment = DEFAULT.partition("Signs that quarantine")[2].partition(" signs: [")[0]
    assert [sign for sign in signs if f"\n| `{sign}` |" not in nvidia or f" {sign}: " not in comment] == []


def test_the_default_policy_names_the_deadline_of_each_step():
    """Steps with the same one stand together: reset, clear and verify 60 s each."""
    groups = [(seconds, list(steps)) for seconds, steps in groupby(STEP_SECONDS, STEP_SECONDS.__getitem__)]
    names = [" and ".join(filter(None, (", ".join(steps[:-1]), steps[-1]))) for _, steps in groups]
    each = [" each" if len(steps) > 1 else "" for _, steps in groups]
    said = [f"{name} {seconds:g}s{end}" for name, (seconds, _), end in zip(names, groups, each, strict=True)]
    assert f"With 1: {', '.join(said)}." in DEFAULT


def test_every_state_and_every_event_has_its_sentence():
    assert list(rows("States")) == [state.value for state in State]
    assert list(rows("Events")) == [event.__name__ for event in typing.get_args(events.Event)]
    assert all(sentence.endswith(".") for sentence in (*rows("States").values(), *rows("Events").values()))


@pytest.mark.parametrize("page", ["architecture.md", "glossary.md"])
def test_pages_name_only_modules_that_exist(page):
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+)`", (ROOT / "docs" / page).read_text()))
    places = [ROOT, ROOT / "scrubber", ROOT / "plugin"]
    assert named
    assert [
        it
        for it in sorted(named)
        if not any((place / it).with_suffix(s).exists() for place in places for s in ("", ".py"))
    ] == []


ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def floors(house):
    """The floors of a house, or of all packages, as the import contracts have them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [it["layers"] for it in contracts if it["name"].startswith(f"{house}: ") and it["type"] == "layers"]
    return [layer.split(" | ") for layer in layers]


@pytest.mark.parametrize("house", ["packages", "autoclave", "scrubber", "plugin"])
def test_the_architecture_names_the_floors_of_the_import_contracts(house):
    drawn = " / ".join(", ".join(f"`{name}`" for name in floor) for floor in floors(house))
    begun = "behind the next stroke" if house == "packages" else f"In `{house}`"
    assert f"{begun}: {drawn}." in " ".join(ARCHITECTURE.split())


def test_each_room_has_a_row_in_the_architecture():
    listed = {name for cell in re.findall(r"^\| (`[^|]+) \|", ARCHITECTURE, re.MULTILINE) for name in cell.split(", ")}
    inits = [path.parent.relative_to(ROOT) for house in HOUSES for path in (ROOT / house).rglob("__init__.py")]
    rooms = {str(room) for room in inits if len(room.parts) <= 2}
    rooms |= {f"scrubber/{name}" for floor in floors("scrubber") for name in floor}
    rooms -= {"autoclave", "scrubber"}  # their rooms have the rows
    assert sorted(room for room in rooms if f"`{room}`" not in listed) == []


def test_the_glossary_is_sorted_and_names_each_room():
    rows = re.findall(
        r"^\| ([^|]+?) \| [^|]+ \| ([^|]*?) ?\|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE
    )
    words = [word for word, _ in rows[1:]]  # without the heading
    assert words == sorted(words, key=lambda word: word.replace("`", "").casefold())
    assert [word for word, room in rows[1:] if not room] == ["tenant"]  # no line of code knows of tenants


def test_the_page_on_upgrading_knows_each_format_of_the_ledger():
    page = (ROOT / "docs" / "upgrading.md").read_text()
    newest, *older_ones = map(int, re.findall(r"^\| (\d+) \|", page, re.MULTILINE))
    sections = set(map(int, re.findall(r"^## From format (.*)", page, re.MULTILINE)))
    assert newest == database.VERSION
    assert set(older_ones) == sections == {database.VERSION - 1}


RECIPES = ROOT / "docs" / "recipes.md"


@pytest.mark.parametrize("page", [*sorted((ROOT / "docs").glob("*.md")), STAND_IN, RECIPES], ids=lambda page: page.name)
def test_pages_name_only_tests_that_exist(page):
    text = page.read_text()
    modules = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "tests").rglob("*.py")}
    files = {path.name for path in modules.values()}
    names = {name for path in modules.values() for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert [it for it in re.findall(r"`(tests/[\w/]+\.py)`", text) if it not in modules] == []
    assert [it for it in re.findall(r"`(test_\w+\.py)`", text) if it not in files] == []
    assert [it for it in re.findall(r"`(test_\w+)` in", text) if it not in names] == []
    begun = re.findall(r"`(test_\w+?)_*\.\.\.`", text)
    assert [it for it in begun if not any(name.startswith(it) for name in names)] == []


def test_the_recipe_for_a_flag_names_the_lists_by_hand():
    [recipe] = re.findall(r"- \*\*a flag of the service\*\*:(.*?)\n- ", RECIPES.read_text(), re.DOTALL)
    assert set(re.findall(r"`(test_\w+)`", recipe)) == {
        "test_every_setting_works_in_every_source",
        "test_more_flags_are_real_flags",
    }


def test_the_comparison_says_what_we_lack():
    """A row that only we could lose stands there as well as those that only we can win."""
    [table] = re.findall(r"(?:^\|.*\n)+", (ROOT / "docs" / "comparison.md").read_text(), re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines() if "---" not in line]
    assert {len(row) for row in rows} == {9}
    ours = {row[0]: row[1] for row in rows}
    lost = ("released", "drains and repairs nodes", "shares a GPU: time-slicing; MPS")
    assert all("no" in ours[name] for name in (*lost, "end-to-end tests on a GPU, in its CI"))


@pytest.mark.parametrize("page", [path for path in FILES if path.suffix == ".md"], ids=place)
def test_prose_wraps_at_one_width(page):
    lines = FENCED.sub("", page.read_text()).splitlines()
    prose = [line for line in lines if not line.lstrip().startswith(("|", "#", "!", "<"))]
    assert [line for line in prose if len(WHOLE.sub("", line)) > WIDTH] == []
