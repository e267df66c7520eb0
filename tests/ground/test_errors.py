"""An error keeps its message and its remedies apart; the tree of errors on the module's page is the real one."""

import ast

from ground import errors
from ground.errors import ErrorWithRemedies, FatalError, Reason, Refused
from tests.house.sources import HOUSES, modules


def test_only_who_prints_joins_message_and_remedies():
    error = Refused(Reason.IN_USE, "cannot: it; is so", "end it", "`wait`; or not", device="GPU-1")
    assert (error.message, error.remedies) == ("cannot: it; is so", ("end it", "`wait`; or not"))
    assert str(error) == error.for_tenants == "cannot: it; is so; end it; `wait`; or not"
    assert str(FatalError("cannot: x")) == "cannot: x"


def drawn():
    """Each class in the docstring of ``ground.errors``, and the class that it is drawn under."""
    above: list[tuple[int, str]] = [(-1, "")]
    for line in (errors.__doc__ or "").split("::\n\n")[1].split("\n\n")[0].splitlines():
        depth, name = len(line) - len(line.lstrip()), line.split()[0]
        while above[-1][0] >= depth:
            above.pop()
        yield name, above[-1][1]
        above.append((depth, name))


def test_the_tree_of_errors_has_each_class_with_remedies():
    bases = {
        node.name: ast.unparse(node.bases[0])
        for _, tree in modules(*HOUSES)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.bases
    }
    ours = {ErrorWithRemedies.__name__}
    while more := {name for name, base in bases.items() if base in ours} - ours:
        ours |= more
    tree = dict(drawn())
    assert ours <= tree.keys()
    assert {name: bases[name] for name in tree if name in bases} == {name: tree[name] for name in tree if tree[name]}
