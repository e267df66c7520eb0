"""Fixtures of several files."""

from tests.control_groups import group

__all__ = ["group"]
