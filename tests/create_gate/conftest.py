"""The compiled program for all tests of this folder."""

import pytest

from tests.create_gate.programs import SOURCE, compiled


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """The program of the create gate."""
    return compiled(tmp_path_factory.mktemp("gate") / "autoclave-gate", SOURCE)
