"""The map names each file of the product, as the file describes itself."""

from deploy import code_map
from tests.house.sources import HOUSES, ROOT, modules, place


def test_the_committed_map_is_the_one_that_is_made_now():
    assert (ROOT / "docs" / "map.md").read_text() == code_map.text(), "write it anew: make docs"


def test_the_map_has_a_sentence_for_every_file():
    text = code_map.text()
    named = [path for path, _ in modules(*HOUSES) if path.name != "__init__.py" and f"| `{path.name}` | " not in text]
    assert [place(path) for path in named] == []
    assert " |  |" not in text, "a file has no docstring"
