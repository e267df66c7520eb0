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
def status(short_tmp):
    """``autoclave status`` in a process of its own, before there is a service."""
    words = {"AUTOCLAVE_RUN_DIR": str(short_tmp / "run"), "AUTOCLAVE_SERVICE_WAIT": LONG}
    command = [sys.executable, "-m", "autoclave", "status"]
    env, pipe = {**os.environ, **words}, subprocess.PIPE
    with subprocess.Popen(command, env=env, text=True, stdout=pipe, stderr=pipe) as verb:
        yield verb
        verb.kill()


def left_socket(root):
    """The socket of a service that was killed."""
    service = Service(root, 1)
    service.kill()
    return root / "run" / "admin.sock"


@pytest.mark.parametrize("killed", [False, True], ids=["missing", "refusing"])
def test_a_verb_waits_for_a_service_that_starts(short_tmp, request, killed):
    if killed:
        assert left_socket(short_tmp).is_socket()
    verb = request.getfixturevalue("status")
    socket = short_tmp / "run" / "admin.sock"
    longest = units.format_duration(WITHIN)
    assert verb.stderr.readline() == f"autoclave: waiting at most {longest} for the scrub service at {socket}\n"
    service = Service(short_tmp, 1)
    shown, more = verb.communicate()
    service.stop()
    assert verb.returncode == 0
    assert shown.startswith("GPU")
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
