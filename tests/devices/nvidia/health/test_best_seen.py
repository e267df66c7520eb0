"""What was the best since the node was started is kept on the disk, or at least remembered."""

from __future__ import annotations

import pytest

from scrubber.devices.nvidia.health import best_seen
from scrubber.devices.nvidia.health.best_seen import Best
from tests.devices.nvidia.health.watching import DOWN, SignReader, change

DAMAGED = {
    "empty": b"",
    "half": best_seen.encode(Best(frozenset({1}), 16), "boot-1")[:20],
    "no document": b"[1]",
    "other fields": b'{"boot": "boot-1", "seen": {"links": [], "lanes": 1, "joined": true, "more": 1}}',
    "words for links": b'{"boot": "boot-1", "seen": {"links": ["1"], "lanes": 1, "joined": true}}',
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_an_unreadable_file_of_best_readings_is_replaced(rig, text: bytes) -> None:
    file = rig.settings.parent / "seen" / f"{rig.gpu(0).uuid}.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(text)
    assert SignReader(rig).look() == ()
    assert best_seen.decode(file.read_bytes(), "boot-1") == Best(frozenset(range(18)), 16, joined=True)
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_unwritable_reading_is_kept_in_memory(rig) -> None:
    (rig.settings.parent).mkdir(parents=True, exist_ok=True)
    (rig.settings.parent / "seen").write_text("no folder")
    reader = SignReader(rig)
    assert reader.look() == ()
    change(rig, {"nvlink.3": DOWN})
    assert [bool(reader.later()) for _ in range(2)] == [False, True]
