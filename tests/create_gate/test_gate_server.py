"""What the service reads from the runtime's state of a container, and answers to a question that is not one."""

import asyncio
import contextlib
import json
import socket
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ground.aio import Changed
from ground.errors import InvalidRequest
from scrubber.create_gate import gate_server
from scrubber.service.tenant_requests import TenantRequests
from tests.create_gate.programs import CONTAINERD, CRIO, LABELS, UID, state
from tests.live import Service
from tests.patience import WITHIN

NAMES = [UID, "team", "train-0", "main", "c1"]
NAMELESS = "the container runtime names no container of a pod"
UNREADABLE = "the container runtime's state of the container cannot be read"
TWICE = "the state of the container names its pod in the words of two container runtimes"
LOOK_ALIKE = {
    "io.kubernetes.cri.sandbox-uid\0": "x",
    "Io.kubernetes.cri.sandbox-uid": "x",
    "io.kubernetes.pod.uid": "x",
    "a": '"io.kubernetes.cri.sandbox-uid":"x"',
}


@pytest.mark.parametrize(
    "annotations",
    [CONTAINERD, CRIO, LOOK_ALIKE | CONTAINERD],
    ids=["containerd", "CRI-O", "annotations that a pod can add"],
)
def test_the_container_is_named_by_its_runtime(annotations):
    assert gate_server.names(state(annotations)) == NAMES


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (b"", UNREADABLE),
        (b"[]", UNREADABLE),
        (state()[:-1], UNREADABLE),
        (state() + b"{}", UNREADABLE),
        (b"[" * 100_000, UNREADABLE),
        (state().decode().encode("utf-16"), UNREADABLE),
        (state({}), NAMELESS),
        (state(None), UNREADABLE),
        (b'{"annotations":{}}', NAMELESS),
        (state(id=7), NAMELESS),
        *((state({**CONTAINERD, "io.kubernetes.cri.sandbox-uid": uid}), NAMELESS) for uid in ("a b", "", "a" * 254)),
        (state({**CONTAINERD, "io.kubernetes.cri.sandbox-name": "a\0b"}), NAMELESS),
        (state({**CONTAINERD, "io.kubernetes.cri.sandbox-name": ["a"]}), NAMELESS),
        (state({key: text for key, text in CONTAINERD.items() if "container-name" not in key}), NAMELESS),
        (state().replace(b'"team"', b'"team","io.kubernetes.cri.sandbox-namespace":"x"'), UNREADABLE),
        (state().replace(b"}}", b'},"annotations":{}}'), UNREADABLE),
        (state(CRIO | CONTAINERD), TWICE),
        (state(CRIO | {"io.kubernetes.cri.sandbox-uid": "x"}), TWICE),
        *((state({"io.kubernetes.cri-o.Labels": text}), UNREADABLE)
          for text in (json.dumps(LABELS)[:-1], "null", "[]", LABELS, None)),
    ],
)  # fmt: skip
def test_a_state_without_one_pod_creates_no_container(given, sentence):
    with pytest.raises(InvalidRequest) as refused:
        gate_server.names(given)
    assert refused.value.message == sentence


KEYS = st.sampled_from(["id", "annotations", *CONTAINERD, *CRIO, *LABELS])
DOCUMENTS = st.recursive(st.none() | st.text() | st.just(7), lambda it: st.lists(it) | st.dictionaries(KEYS, it))


@given(st.binary(max_size=80) | DOCUMENTS.map(lambda it: json.dumps(it).encode()))
def test_any_state_of_the_runtime_gives_names_or_is_refused(text):
    try:
        found = gate_server.names(text)
    except InvalidRequest:
        return
    assert len(found) == 5
    assert all(map(gate_server.NAME.fullmatch, found))


@pytest.fixture(scope="module")
def gate(tmp_path_factory):
    """The socket of a running service."""
    service = Service(tmp_path_factory.mktemp("service"), 1)
    yield service.run_dir / "gate.sock"
    service.kill()


LONG = state(CONTAINERD | {"a": "x" * 900_000})
NO_QUESTION = "the container is not created: the question of the create gate cannot be read"


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        pytest.param(b"2 create 60 GPU-1 %d\n" % len(LONG) + LONG, "container main of pod team/train-0 is not created: "
                     "cannot find device GPU-1: no device has this name", id="a long state"),
        (b"2 create 60 GPU-1 2\n{}", f"the container is not created: {NAMELESS}"),
        (b"1 create 60 GPU-1 2\n{}", NO_QUESTION),
        (b"2 release 60 GPU-1 2\n{}", NO_QUESTION),
        (b"2 create 60 GPU-1\n", NO_QUESTION),
        (b"2 create 60 GPU-1 2 c2\n{}", NO_QUESTION),
        (b"2 create 60 GPU-1 9999999\n{}", NO_QUESTION),
        (b"2 create 60 \xff 2\n{}", NO_QUESTION),
        (b"\n", NO_QUESTION),
        (b"x" * 10_000, "the question of the create gate cannot be read"),
    ],
)  # fmt: skip
def test_a_wrong_question_is_answered_with_no(gate, question, answer):
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(WITHIN)
        asking.connect(str(gate))
        asking.sendall(question)
        said = b""
        while more := asking.recv(1000):
            said += more
        assert said == f"2 no {answer}\n".encode()


class Busy:
    """A service that never decides."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.changed = Changed()

    async def start(self, devices, pod, **_):
        self.asked.append((*devices, pod))
        self.changed.notify()
        await asyncio.Event().wait()


@pytest.fixture
async def busy(short_tmp, monkeypatch):
    """The gate of that service, with places for four questions."""
    monkeypatch.setattr(gate_server, "MOST_WAITING", 4)
    handover = Busy()
    it = gate_server.GateServer(cast("TenantRequests", handover), lambda *_: None, None)
    await it.open(short_tmp / "gate.sock")
    yield short_tmp / "gate.sock", handover
    await it.close()


async def test_many_questions_about_one_device_displace_no_other_device(busy):
    path, handover = busy
    async with contextlib.AsyncExitStack() as programs, asyncio.timeout(WITHIN):

        async def ask(device: str, pod: str) -> asyncio.StreamReader:
            reader, writer = await asyncio.open_unix_connection(path)
            programs.callback(writer.close)
            text = state({**CONTAINERD, "io.kubernetes.cri.sandbox-uid": pod})
            writer.write(f"2 create 60 {device} {len(text)}\n".encode() + text)
            return reader

        readers = {}
        for device, pod in [*(("GPU-1", pod) for pod in "abcd"), ("GPU-2", "e"), ("GPU-2", "f")]:
            readers[pod] = await ask(device, pod)
            await handover.changed.until(lambda: len(handover.asked) == len(readers))
        readers["g"] = await ask("GPU-1", "g")
        for displaced in ("d", "c", "g"):  # their programs ask again
            assert await readers.pop(displaced).read() == b""
        assert not any(reader.at_eof() for reader in readers.values())
