"""The program that the container runtime runs: only a clear yes lets a container be created."""

import json
import socket
import subprocess
import threading

import pytest

from tests.create_gate.programs import CONTAINERD, CRIO, LABELS, POD, state
from tests.patience import WITHIN

QUESTION = "1 create 60 GPU-1 {uid} {namespace} {pod} {container} c1\n".format(**POD).encode()
NAMELESS = "the container runtime names no container of a pod"
UNREADABLE = "the container runtime's state of the container cannot be read"


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
            with connection:
                questions.append(connection.makefile("rb").readline())
                connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return questions


@pytest.mark.parametrize("annotations", [CONTAINERD, CRIO], ids=["containerd", "CRI-O"])
def test_the_service_learns_which_container_is_created(service, ask, annotations):
    questions = answering(service, b"1 yes\n")
    assert ask(state(annotations)).returncode == 0
    assert questions == [QUESTION]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"1 no it is quarantined\n", "it is quarantined"),
        (b"1 no a\x1b[31mb\n", "a?[31mb"),
        (b"1 no \n", "the scrub service gave no answer that this program knows"),
        (b"2 yes\n", "the scrub service gave no answer that this program knows"),
        (b"1 yes indeed\n", "the scrub service gave no answer that this program knows"),
        (b"1 yes\n1 yes\n", "the scrub service gave no answer that this program knows"),
        (b"1 yes\0\n", "the scrub service gave no answer that this program knows"),
    ],
)
def test_no_other_answer_lets_a_container_be_created(service, ask, answer, sentence):
    answering(service, answer)
    done = ask(state())
    assert done.returncode == 1
    assert done.stderr.decode() == f"autoclave: container main of pod team/train-0 is not created: {sentence}\n"


def test_the_next_service_is_asked_if_one_ends(service, ask):
    questions = answering(service, b"", b"1 ye", b"1 yes\n")
    assert ask(state()).returncode == 0
    assert questions == [QUESTION] * 3


def test_without_a_service_no_container_is_created(ask):
    done = ask(state(), seconds="1")
    assert (done.returncode, done.stderr.decode().partition("created: ")[2]) == (
        1,
        "the scrub service does not answer\n",
    )


def test_a_service_that_says_nothing_is_not_waited_for_longer(service, ask):
    assert ask(state(), seconds="1").returncode == 1
    service.accept()[0].close()  # it was asked


def test_a_runtime_that_sends_nothing_creates_no_container(program, tmp_path):
    command = [program, tmp_path / "gate.sock", "GPU-1", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.wait(WITHIN) == 1  # its input stays open


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (b"", UNREADABLE),
        (state()[:-1], UNREADABLE),
        (state() + b"{}", UNREADABLE),
        (b"[" * 100_000, UNREADABLE),
        (b" " * (1 << 20), "the state of the container is too long"),
        (state({}), NAMELESS),
        (state(None), UNREADABLE),
        (b'{"annotations":{}}', NAMELESS),
        (state({**CONTAINERD, "io.kubernetes.cri.sandbox-uid": "a b"}), NAMELESS),
        (state({**CONTAINERD, "io.kubernetes.cri.sandbox-uid": ""}), NAMELESS),
        (state({**CONTAINERD, "io.kubernetes.cri.sandbox-uid": "a" * 254}), NAMELESS),
        (state({**CONTAINERD, "io.kubernetes.cri.sandbox-name": "a\0b"}), NAMELESS),
        (state({**CONTAINERD, "io.kubernetes.cri.sandbox-name": ["a"]}), UNREADABLE),
        (state({key: text for key, text in CONTAINERD.items() if "container-name" not in key}), NAMELESS),
        (state().replace(b'"team"', b'"team","io.kubernetes.cri.sandbox-namespace":"x"'), UNREADABLE),
        (state().replace(b"}}", b'},"annotations":{}}'), UNREADABLE),
        (state(CRIO | CONTAINERD), "the state of the container names its pod in the words of two container runtimes"),
        (state(CRIO | {"io.kubernetes.cri.sandbox-uid": "x"}),
         "the state of the container names its pod in the words of two container runtimes"),
        (state({"io.kubernetes.cri-o.Labels": json.dumps(LABELS)[:-1]}), UNREADABLE),
    ],
)  # fmt: skip
def test_a_state_without_one_pod_creates_no_container(ask, given, sentence):
    done = ask(given, seconds="1")
    assert (done.returncode, done.stderr.decode()) == (1, f"autoclave: the container is not created: {sentence}\n")


@pytest.mark.parametrize(("device", "seconds"), [("", "1"), ("GPU 1", "1"), ("GPU-1", "0"), ("GPU-1", "4000")])
def test_a_wrong_use_creates_no_container(ask, device, seconds):
    done = ask(state(), device=device, seconds=seconds)
    assert (done.returncode, b"usage: autoclave-gate SOCKET DEVICE SECONDS" in done.stderr) == (1, True)


def test_a_tenant_cannot_name_another_pod(service, ask):
    """Keys that look like those of the runtime, and annotations of the pod's own, count for nothing."""
    questions = answering(service, b"1 yes\n")
    look_alike = {
        "io.kubernetes.cri.sandbox-uid\0": "x",
        "Io.kubernetes.cri.sandbox-uid": "x",
        "io.kubernetes.pod.uid": "x",
        "a": '"io.kubernetes.cri.sandbox-uid":"x"',
    }
    assert ask(state(look_alike | CONTAINERD)).returncode == 0
    assert questions == [QUESTION]
