"""Plain YAML is parsed with positions; everything else is refused with its position."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ground.documents import yaml_tree
from ground.documents.faults import DocumentError

PARTS = [": ", "\n", "- ", "[", "]", "{", "}", ", ", "&a ", "*a", "!t ", "---\n", "...\n", "%YAML 1.1\n", "? ", "| \n"]
ODDITIES = ["name", "'", '"', "\\U00110000", "\\ud800", "#", "  ", "\t", "\x07", "\ufeff", "~", "5", "<<", "\r", "\x85"]
YAMLISH = st.lists(st.sampled_from(PARTS + ODDITIES) | st.text(max_size=2), max_size=12).map("".join)


def refused(text):
    with pytest.raises(DocumentError) as caught:
        yaml_tree.parse(text, "t.yaml")
    return [str(fault) for fault in caught.value.faults]


def plain(text):
    root, faults = yaml_tree.parse(text, "t.yaml")
    assert faults == ()
    return root.plain()


def test_plain_data_is_parsed_unchanged():
    text = "a: [1, -2, 0.5, true, False]\nb: {c: 10s, d: 'yes', 'e f': no}\n5: 2026-01-01\n<<: on\n"
    assert plain(text) == {
        "a": [1, -2, 0.5, True, False],
        "b": {"c": "10s", "d": "yes", "e f": "no"},
        "5": "2026-01-01",
        "<<": "on",
    }


@pytest.mark.parametrize("text", ["0x1f", "0o17", "1_000", ".inf", ".nan", "1e3", "9" * 5000, "'5'"])
def test_a_number_that_is_no_plain_decimal_stays_text(text):
    assert plain(f"a: {text}") == {"a": text.strip("'")}


def test_every_value_has_its_position_and_its_keys():
    root, _ = yaml_tree.parse("# hello\na:\n  b: [1,\n      22]\n", "t.yaml")
    found = root.find(("a", "b", 1))
    assert found is not None
    assert (found.value, found.place) == (22, yaml_tree.SourcePosition(4, 7))
    assert root.nearest(("a", "b", 7, "c")).key == yaml_tree.SourcePosition(3, 3)
    assert root.find(("a", "x")) is root.find(("a", 0)) is root.find(("a", "b", "c")) is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: 1\nb: &x 2\n", '2:4: found the anchor "x", expected a plain value, as aliases are refused'),
        ("a: 1\nb: *x\n", '2:4: found the alias "x", expected the value written out'),
        ("a: !!int '5'", '1:4: found the tag "tag:yaml.org,2002:int", expected a plain value'),
        ("a: !x {}", '1:4: found the tag "!x", expected a plain value'),
        ("%YAML 1.1\n---\na: no", "2:1: found a % directive, expected YAML 1.2 without directives"),
        ("%TAG ! x\n---\na: no", "2:1: found a % directive, expected YAML 1.2 without directives"),
        ("a: 1\n---\nb: 2\n", "2:1: found a second document, expected one document in a file"),
        ("[" * 17, "1:17: found more than 16 levels, expected at most 16"),
        ('a: "\\ud800"', "1:4: found half of a surrogate pair (a \\ud800 escape), expected whole characters"),
        ("a: 1\nb: \x07", "2:4: found the control character 0x07, expected printable text"),
        ("", "1:1: found an empty file, expected a mapping of keys and values"),
        ("# nothing\n", "1:1: found an empty file, expected a mapping of keys and values"),
    ],
)
def test_special_yaml_is_refused_with_its_position(text, fault):
    assert refused(text)[0] == f"t.yaml:{fault}"


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("a: 1\nb: [1\nc: 2", "3:2", "expected ',' or ']'"),
        ("a: b: c", "1:5", "mapping values are not allowed here"),
        ("a: 1\n\tb: 2", "2:1", "cannot start any token"),
        ("a: 'x", "1:6", "unexpected end of stream"),
        ('a: "\\U00110000"', "1:2", "chr() arg not in range"),
        ("%YAML 3.1\n---\na: 1", "1:1", "incompatible YAML document"),
    ],
)
def test_broken_yaml_is_one_fault_with_its_place(text, place, problem):
    (fault,) = refused(text)
    assert fault.startswith(f"t.yaml:{place}: found broken YAML (")
    assert problem in fault
    assert fault.endswith("expected valid YAML 1.2")


def test_all_faults_of_a_structure_are_reported():
    root, faults = yaml_tree.parse("a: 1\na: 2\nb:\nc: {d: ~}\n[x]: 1\n", "t.yaml")
    assert [str(fault) for fault in faults] == [
        "t.yaml:2:1: a: found a duplicate key (first on line 1), expected each key once",
        "t.yaml:3:1: b: found nothing, expected a value; leave the key out to keep the default",
        "t.yaml:4:8: c.d: found nothing, expected a value; leave the key out to keep the default",
        "t.yaml:5:1: found a key that is not text, expected a word as the key",
    ]
    assert root.plain() == {"a": 1, "b": None, "c": {"d": None}}


def test_an_alias_bomb_is_refused_before_it_unfolds():
    bomb = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    began = time.process_time()
    assert len(refused(bomb)) == 12 + 11 * 9
    assert time.process_time() - began < 2


@given(YAMLISH)
def test_any_text_is_a_tree_or_faults_with_places(text):
    try:
        root, faults = yaml_tree.parse(text, "t.yaml")
        root.plain()
    except DocumentError as error:
        faults = error.faults
        assert faults
    lines = len(text.splitlines()) + 1
    assert all(1 <= fault.line <= lines and fault.column >= 1 for fault in faults)
    assert all(str(fault).isprintable() for fault in faults)
