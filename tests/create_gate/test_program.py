"""The program that the container runtime runs: only a clear yes lets a container be created."""

import socket
import subprocess
import threading
from contextlib import suppress

import pytest

from tests.create_gate.programs import SOURCE, compiled
from tests.patience import WITHIN

STATE = b'{"id":"c1"}'  # the program understands nothing of it
UNKNOWN = "the container is not created: the scrub service gave no answer that this program knows"
QUESTION = b"2 create 60 GPU-1 %d\n" % len(STATE) + STATE

CHECKED = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """The program with the compiler's checks of each access to memory."""
    folder = tmp_path_factory.mktemp("checked")
    (folder / "nothing.c").write_text("int main(void) { return 0; }")
    try:
        compiled(folder / "nothing", folder / "nothing.c", *CHECKED)
    except subprocess.CalledProcessError:
        pytest.skip("this C compiler has no sanitizers")
    return compiled(folder / "autoclave-gate", SOURCE, *CHECKED)


@pytest.fixture
def service(tmp_path):
    """Where the service answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(tmp_path / "gate.sock"))
        listening.listen()
        yield listening


@pytest.fixture
def ask(program, tmp_path):
    """Run the program with a state on its input."""

    def run(given, *, seconds="60", device="GPU-1") -> subprocess.CompletedProcess[bytes]:
        command = [program, tmp_path / "gate.sock", device, seconds]
        return subprocess.run(command, input=given, capture_output=True, timeout=WITHIN, check=False, env={})

    return run


def answering(service, *answers):
    """Give one answer to each connection. Returns the questions."""
    questions = []

    def serve() -> None:
        for answer in answers:
            connection, _ = service.accept()
            with connection, connection.makefile("rb") as asked:
                line = asked.readline()
                questions.append(line + asked.read(int(line.split()[-1])))
                connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return questions


@pytest.mark.parametrize("size", [0, 11, (1 << 20) - 1], ids=["nothing", "a little", "all that fits"])
def test_the_service_gets_the_whole_state(service, ask, size):
    given = b"x" * size
    questions = answering(service, b"2 yes\n")
    assert ask(given).returncode == 0
    assert questions == [b"2 create 60 GPU-1 %d\n" % size + given]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"2 no it is quarantined\n", "it is quarantined"),
        (b"2 no a\x1b[31mb\n", "a?[31mb"),
        (b"2 no \n", UNKNOWN),
        (b"1 yes\n", UNKNOWN),
        (b"2 yes indeed\n", UNKNOWN),
        (b"2 yes\n2 yes\n", UNKNOWN),
        (b"2 yes\0\n", UNKNOWN),
    ],
)
def test_no_other_answer_lets_a_container_be_created(service, ask, answer, sentence):
    answering(service, answer)
    done = ask(STATE)
    assert done.returncode == 1
    assert done.stderr.decode() == f"autoclave: {sentence}\n"


def test_the_next_service_is_asked_if_one_ends(service, ask):
    questions = answering(service, b"", b"2 ye", b"2 yes\n")
    assert ask(STATE).returncode == 0
    assert questions == [QUESTION] * 3


def test_without_a_service_no_container_is_created(ask):
    done = ask(STATE, seconds="1")
    assert done.returncode == 1
    assert done.stderr == b"autoclave: the container is not created: the scrub service does not answer\n"


def test_a_service_that_says_nothing_is_not_waited_for_longer(service, ask):
    assert ask(STATE, seconds="1").returncode == 1
    service.accept()[0].close()  # it was asked


def test_a_runtime_that_sends_nothing_creates_no_container(program, tmp_path):
    command = [program, tmp_path / "gate.sock", "GPU-1", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.wait(WITHIN) == 1  # its input stays open


def test_a_runtimes_state_that_is_too_long_is_refused(ask):
    done = ask(b" " * (1 << 20))
    assert (done.returncode, done.stderr) == (1, b"autoclave: the container is not created: its state is too long\n")


@pytest.mark.parametrize(("device", "seconds"), [("", "1"), ("GPU 1", "1"), ("GPU-1", "0"), ("GPU-1", "4000")])
def test_a_wrong_use_creates_no_container(ask, device, seconds):
    done = ask(STATE, device=device, seconds=seconds)
    assert (done.returncode, b"usage: autoclave-gate SOCKET DEVICE SECONDS" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("pieces", "answers", "said"),
    [
        ([], [b"2 yes\n"], b""),
        ([b"x"] * 40, [b"2 yes\n"], b""),
        ([b"x" * 4096] * 255 + [b"x" * 4095], [b"2 yes\n"], b""),
        ([b"x" * 4096] * 257, [], b"autoclave: the container is not created: its state is too long\n"),
        ([STATE], [b"", b"2 ye", b"2 yes\n"], b""),
        ([STATE], [b"2 no %s\n" % (b"x" * 2042)], b"autoclave: %s\n" % (b"x" * 2042)),
        ([STATE], [b"2 no %s\n" % (b"x" * 2043), b"2 yes\n"], b""),
        ([STATE], [b"x" * 9000, b"2 yes\n"], b""),
    ],
    ids=["an empty state", "a slow state", "a full state", "a long state", "cut answers", "a full answer",
         "an answer one byte too long", "a long answer"],
)  # fmt: skip
def test_no_input_makes_the_program_leave_its_memory(service, checked, tmp_path, pieces, answers, said):
    answering(service, *answers)
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # it reads each piece by itself
    command = [checked, tmp_path / "gate.sock", "d" * 253, "60"]
    with ours, subprocess.Popen(command, stdin=its.fileno(), stderr=subprocess.PIPE, env={}) as process:
        its.close()
        with suppress(BrokenPipeError):  # a state that is too long is not read to its end
            for piece in pieces:
                ours.sendall(piece)
        ours.close()
        _, errors = process.communicate(timeout=WITHIN)
    assert (process.returncode, errors) == (1 if said else 0, said)
