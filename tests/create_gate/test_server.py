"""What the service answers to a question of the create gate that is not one."""

import socket

import pytest

from tests.live import Service
from tests.patience import WITHIN


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    """The socket of a running service."""
    service = Service(tmp_path_factory.mktemp("service"), 1)
    yield service.run_dir / "gate.sock"
    service.kill()


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (
            b"1 create 60 GPU-1 a team train-0 main c1\n",
            b"1 no cannot find device GPU-1: no device has this name\n",
        ),
        (b"2 create 60 GPU-1 a team train-0 main c1\n", b"1 no the question of the create gate cannot be read\n"),
        (b"1 release 60 GPU-1 a team train-0 main c1\n", b"1 no the question of the create gate cannot be read\n"),
        (b"1 create 60 GPU-1 a team train-0 main\n", b"1 no the question of the create gate cannot be read\n"),
        (b"1 create 60 GPU-1 a team train-0 main c1 c2\n", b"1 no the question of the create gate cannot be read\n"),
        (b"1 create 60 GPU-1 \xff team train-0 main c1\n", b"1 no the question of the create gate cannot be read\n"),
        (b"\n", b"1 no the question of the create gate cannot be read\n"),
        (b"x" * 10_000, b"1 no the question of the create gate cannot be read\n"),
    ],
)
def test_a_wrong_question_is_answered_with_no(gate, question, answer):
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(WITHIN)
        asking.connect(str(gate))
        asking.sendall(question)
        said = b""
        while more := asking.recv(1000):
            said += more
        assert said == answer
