"""What the night plants into the product still has its place there."""

from __future__ import annotations

import ast

import pytest

from tests.soak.planted import CARELESS, OPEN


@pytest.mark.parametrize("how", [*CARELESS, *OPEN])
def test_a_planted_fault_has_its_place(how):
    ast.parse((CARELESS | OPEN)[how].text())
