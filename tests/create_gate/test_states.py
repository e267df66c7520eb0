"""The program reads the runtime's state as Python's own JSON does, and no byte beyond."""

import json
import re
import struct
import subprocess
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.create_gate.programs import CONTAINERD, CRIO, LABELS, SOURCE, compiled, state
from tests.patience import WITHIN

NAME = re.compile(r"[A-Za-z0-9._-]{1,253}")
ROWS = dict(zip(("uid", "namespace", "pod", "container"), zip(CONTAINERD, LABELS, strict=True), strict=True))
SEEDS = [state(), state(CRIO), state(CRIO | CONTAINERD), state({}), state(CONTAINERD | {"a": '\u00e4\\"\n'})]
PIECES = [b"", b'"', b"\\", b"{", b"}", b",", b":", b"\0", b"\xff", b"\\u0041", b"0", b"-1e"]
KEYS = st.sampled_from([*CONTAINERD, *CRIO, *LABELS, "id", "annotations", "a"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
    | st.sampled_from(["x", "a-b.c", *CRIO.values()]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(), inner, max_size=6),
    max_leaves=12,
)  # fmt: skip


@st.composite
def changed(draw):
    """A true state with some bytes replaced, cut out or doubled."""
    text = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text) - 1))
        more = draw(
            st.sampled_from([b"", b'"', b"\\", b"{", b"}", b",", b":", b"\0", b"\xff", b"\\u0041", b"0", b"-1e"])
        )
        text[at : at + draw(st.integers(0, 3))] = more or text[at : at + 9]
    return bytes(text)


@st.composite
def made(draw):
    """Another object, as one writes it."""
    annotations = draw(st.dictionaries(KEYS, VALUES, max_size=8) | st.sampled_from([CONTAINERD, CRIO]))
    whole = {"id": draw(VALUES), "annotations": annotations, **draw(st.dictionaries(KEYS, VALUES, max_size=2))}
    return json.dumps(whole, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1]))).encode()


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """The program's own code, with the compiler's checks of each access."""
    sanitized = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Wno-unused-function",
                 f"-I{SOURCE.parent}")  # fmt: skip
    folder = tmp_path_factory.mktemp("states")
    return compiled(folder / "every-state", SOURCE.parents[2] / "tests/create_gate/every_state.c", flags=sanitized)


def test_every_state_is_read_as_json_is(reader):
    seen = []

    @settings(database=None, max_examples=500)
    @given(changed() | made() | st.binary(max_size=80))
    def collect(text) -> None:
        seen.append(text)

    collect()
    frames = b"".join(struct.pack("I", len(text)) + text for text in seen)
    done = subprocess.run([reader], input=frames, capture_output=True, timeout=WITHIN, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    for text, line in zip(seen, done.stdout.decode().splitlines(), strict=True):
        assert line == expected(text), text


def expected(text):
    """By Python's own reader."""
    try:
        whole = read(text)
        annotations = dict(whole["annotations"])
        owners = [{row: annotations[key] for row, (key, _) in ROWS.items() if key in annotations}]
        if "io.kubernetes.cri-o.Labels" in annotations:
            labels = read(annotations["io.kubernetes.cri-o.Labels"])
            owners.append({row: labels[key] for row, (_, key) in ROWS.items() if key in labels})
            if owners.pop(0):
                return "no"
        names = [*(owners[0][row] for row in ROWS), whole["id"]]
        return " ".join(names) if all(map(NAME.fullmatch, names)) else "no"
    except (ValueError, LookupError, TypeError, RecursionError):
        return "no"


def read(text):
    """An object, in which no key that counts stands twice."""

    def pairs(items) -> dict[str, Any]:
        keys = [key for key, _ in items]
        for key in [*CONTAINERD, *CRIO, *LABELS, "id", "annotations"]:
            if keys.count(key) > 1:
                raise ValueError(key)
        return dict(items)

    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")  # otherwise Python looks for UTF-16 as well
    whole = json.loads(text, object_pairs_hook=pairs)
    if not isinstance(whole, dict):
        raise TypeError
    return whole
