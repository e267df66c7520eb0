"""The policy in force outlives everything that makes a reload fail."""

from __future__ import annotations

import resource

import pytest

from scrubber.policy import ActivePolicy


@pytest.mark.parametrize("shipped", [True, False], ids=["a shipped policy", "a file"])
def test_a_reload_without_free_files_keeps_the_policy(tmp_path, shipped):
    file = tmp_path / "policy.yaml"
    file.write_text("name: mine\n")
    active = ActivePolicy("strict" if shipped else str(file))
    name, limits = active.name, resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        changed = active.reload()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (changed, active.name) == (False, name)
    assert "Too many open files" in active.fault
    assert not active.reload()
    assert active.fault == ""
