"""A verb that is typed while the service starts waits for the service, but not for ever."""

import os
import signal
import subprocess
import sys

import pytest

from ground import unix_sockets
from ground.documents import units
from tests.live import Service
from tests.patience import WITHIN

LONG = f"{WITHIN}s"


@pytest.fixture
def verb(short_tmp, request):
    """A verb in a process of its own, before there is a service."""
    command, pipe = [sys.executable, "-m", "autoclave", *request.param], subprocess.PIPE
    env = {**os.environ, "AUTOCLAVE_RUN_DIR": str(short_tmp / "run")}
    with subprocess.Popen(command, env=env, text=True, stdout=pipe, stderr=pipe) as verb:
        yield verb
        verb.kill()


@pytest.fixture
def killed(short_tmp, request):
    """Whether a service was killed before, and has left its socket."""
    if request.param:
        Service(short_tmp, 1).kill()
    return request.param


STATUS = ("--service-wait", LONG, "status")
WAIT = ("wait", "0", "--timeout", LONG)  # its own timeout is longer than that of the other verbs


@pytest.mark.parametrize(
    ("killed", "verb", "says"),
    [(False, STATUS, "GPU  "), (True, STATUS, "GPU  "), (False, WAIT, "GPU 0 ")],
    ids=["missing", "refusing", "wait"],
    indirect=["killed", "verb"],
)
def test_a_verb_waits_for_a_service_that_starts(short_tmp, killed, verb, says):
    socket = short_tmp / "run" / "admin.sock"
    assert socket.is_socket() is killed
    longest = units.format_duration(WITHIN)
    assert verb.stderr.readline() == f"autoclave: waiting at most {longest} for the scrub service at {socket}\n"
    service = Service(short_tmp, 1)
    shown, more = verb.communicate()
    service.stop()
    assert verb.returncode == 0
    assert shown.startswith(says)
    assert more == ""


def test_a_forbidden_socket_is_not_waited_for(autoclave, tmp_path, monkeypatch):
    monkeypatch.setattr(unix_sockets, "connect_error", lambda _: PermissionError())  # root may open all
    run = autoclave("--service-wait", LONG, "status", "--run-dir", tmp_path)
    assert run.exit_code == 3, run.stderr
    assert "waiting" not in run.stderr


@pytest.mark.parametrize(("args", "name"), [(["status"], "admin"), (["release", "--owner", "job 1"], "scrubber")])
def test_a_service_that_hangs_is_not_called_dead(autoclave, short_tmp, args, name):
    service = Service(short_tmp, 1)
    service.settled(0, "clean")
    pid = service.process.pid
    os.kill(pid, signal.SIGSTOP)
    run = autoclave(*args, AUTOCLAVE_RUN_DIR=str(short_tmp / "run"))
    os.kill(pid, signal.SIGCONT)
    service.stop()
    assert run.exit_code == 3, run.stderr
    assert f"{name}.sock: it does not answer: pid {pid}, which runs since 20" in run.stderr
    assert f"it is stopped by a signal: `kill -CONT {pid}`, or restart the service: `systemctl restart" in run.stderr


@pytest.mark.parametrize("args", [("doctor",), ("xid", "79")])
def test_a_verb_without_a_service_does_not_wait(autoclave, tmp_path, args):
    run = autoclave("--service-wait", LONG, *args, AUTOCLAVE_RUN_DIR=str(tmp_path), AUTOCLAVE_HOST_ROOT=str(tmp_path))
    assert run.stdout
    assert "waiting" not in run.stderr


def test_without_a_service_a_verb_says_once_that_it_waits(autoclave, tmp_path):
    run = autoclave("--service-wait", "600ms", "status", "--run-dir", tmp_path)
    assert run.exit_code == 3, run.stderr
    assert run.stderr.count("waiting at most 600ms for the scrub service") == 1
    assert run.stderr.count("\n") == 2
