"""The map names each file of the product, as the file describes itself."""

from deploy import code_map
from tests.house.sources import HOUSES, ROOT, modules, place

COMMITTED = (ROOT / "docs" / "map.md").read_text()


def test_the_committed_map_is_the_one_that_is_made_now():
    assert code_map.text() == COMMITTED, "write it anew: make docs"


def test_the_map_has_a_sentence_for_every_file():
    paths = [path for path, _ in modules(*HOUSES) if path.name != "__init__.py"]
    assert [place(path) for path in paths if f"| `{path.name}` | " not in COMMITTED] == []
    assert " |  |" not in COMMITTED, "a file has no docstring"


TREE = {
    "pyproject.toml": '[[tool.importlinter.contracts]]\nname = "packages: top first"\nlayers = ["room"]\n',
    "room/__init__.py": '"""A room. What it does itself."""\ndef door(): ...\ndef window(): ...',
    "room/one.py": '''"""One."""
class Rare:
    def way(self): ...
    def _way(self): ...
def sometimes(): ...
def _private(): ...
def often(): ...
''',
    "room/three.py": '"""Three."""\nfrom room import window\nfrom room.one import often',
    "room/two.py": '"""Two."""\nfrom room import one\n_it = one.often, one.sometimes, one.sometimes',
}


def test_the_names_that_most_files_use_stand_first(tmp_path, monkeypatch):
    for name, content in TREE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(code_map, "ROOT", tmp_path)
    rows = [line for line in code_map.text().splitlines() if ".py` | " in line]
    assert rows == [
        "| `__init__.py` | What it does itself. | `window, door` |",
        "| `one.py` | One. | `often, sometimes, Rare, .way` |",
        "| `three.py` | Three. |",
        "| `two.py` | Two. |",
    ]
    monkeypatch.setattr(code_map, "MOST", 2)
    assert "| `one.py` | One. | `often, sometimes` |" in code_map.text()
