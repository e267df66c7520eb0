"""The service as a process: start, stop, kill, and faults of its disk and its policy."""

import asyncio
import json
import os
import resource
import signal
import socket
import sqlite3
import stat
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from structlog.testing import capture_logs

from autoclave.cli import service_call
from ground import private_files, unix_sockets
from ground.errors import AutoclaveError, LedgerUnavailable, Reason
from policies import load
from scrub_api import admin_client, client
from scrubber import __version__, assembly, daemon, systemd
from scrubber.api.server import GrpcServers
from scrubber.config import BackendChoice, ScrubberConfig
from scrubber.core import standstills
from scrubber.devices.simulated import drills
from scrubber.jobs.jobs import Jobs
from scrubber.ledger.ledger import Ledger
from scrubber.policy import ActivePolicy
from scrubber.service.monitor import Monitor
from scrubber.service.upkeep import Upkeep
from scrubber.workers.pool import WorkerPool
from tests import forking
from tests.fetching import fetch, metrics
from tests.live import Service
from tests.patience import WITHIN
from tests.small_disk import files_of_at_most
from tests.workers.zygotes import children, gone_within


def with_inotify(instances):
    """Runs a program in a user namespace that may have so many inotify instances."""
    return [
        "unshare", "-r", "sh", "-c", f'echo {instances} > /proc/sys/user/max_inotify_instances && exec "$@"', "sh",
    ]  # fmt: skip


WITHOUT_WATCHES = with_inotify(0)
ISOLATES = subprocess.run([*WITHOUT_WATCHES, "true"], capture_output=True, check=False).returncode == 0
OWN_MEMORY = 46 * 2**20
TRACED: dict[type | ModuleType, dict[str, str]] = {
    assembly: {"open_ledger": "ledger", "build": "parts"},
    daemon: {"_start_tasks": "tasks"},
    WorkerPool: {"start": "workers", "close": "workers' end"},
    Upkeep: {"recover": "recovery"},
    Monitor: {"round": "round"},
    GrpcServers: {"open": "sockets", "close": "sockets' end"},
    Jobs: {"stop": "jobs' end"},
    Ledger: {"append_of_node": "", "close": "ledger's end"},
}


@pytest.fixture
def service(short_tmp):
    running = Service(short_tmp, 1)
    yield running
    if running.process.poll() is None:
        running.stop()


@pytest.fixture(scope="module")
def shared():
    """An executed service for tests that change nothing that another test looks at: GPU 0 stays clean."""
    with tempfile.TemporaryDirectory(prefix="ac-", dir="/tmp") as root, forking.forking(forking.EXECUTED):
        running = Service(Path(root), 2)
        yield running
        running.stop()


def device(service):
    return service_call.ask(service.run_dir, lambda admin: admin.status()).devices[0]


def texts(service):
    return [entry.text for entry in service_call.ask(service.run_dir, lambda admin: admin.history())]


def await_text(service, begin):
    """Wait until the history has an event whose text begins with these words."""

    async def until(admin: admin_client.AdminClient) -> None:
        while not any(entry.text.startswith(begin) for entry in await admin.history()):
            await admin.status(newer_than=(await admin.status()).service.ledger_rows, wait=0.1)

    service_call.ask(service.run_dir, until)


def acquire(service, uuid):
    async def ask() -> object:
        async with client.ScrubberClient(service.run_dir / "scrubber.sock") as scrubber:
            return await scrubber.acquire([uuid])

    return asyncio.run(ask())


def stalled_scrub(service):
    """A scrub that hangs in its clear, and the worker's process id."""
    uuid = service.settled(0, "clean").device
    drills.stall_clears(service.simulated_dir, uuid)

    async def begin(admin: admin_client.AdminClient) -> None:
        async for progress in admin.scrub([uuid]):
            if progress.step == "clear" and progress.done_bytes:  # its worker is born, and writes
                return

    service_call.ask(service.run_dir, begin)
    [zygote] = children(service.process.pid)
    [worker] = children(zygote)
    return uuid, worker


def test_files_are_private_to_the_user_of_the_service(shared):
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    assert mode(shared.run_dir) == mode(shared.root / "state") == 0o700
    assert mode(shared.run_dir / "scrubber.sock") == mode(shared.run_dir / "admin.sock") == 0o600
    assert mode(shared.root / "state/ledger.db") == 0o600


@pytest.fixture
def unforked(short_tmp):
    """A service that is no fork: a fork has all that the tests have loaded in its memory."""
    with forking.forking(forking.EXECUTED):
        running = Service(short_tmp, 1)
    yield running
    running.stop()


def test_the_service_is_small_and_loads_no_cuda(unforked):
    """One of its own: the longer a service runs beside other tests, the larger processes of theirs it has read."""
    service = unforked
    service.settled(0, "clean")
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    # How many pages of libraries are mapped as well depends on how the kernel has read these files.
    assert next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon")) <= OWN_MEMORY
    maps = Path(f"/proc/{service.process.pid}/maps").read_text()
    assert not [name for name in ("numpy", "cupy", "libcuda", "libnvidia") if name in maps]


def test_a_stop_interrupts_a_scrub_without_a_setback(service):
    uuid, worker = stalled_scrub(service)
    handle = os.pidfd_open(worker)
    service.stop()
    assert gone_within(handle, 0)
    os.close(handle)
    assert list(service.run_dir.glob("*.sock")) == []
    (service.run_dir / "last-error").write_text("of an earlier run")
    (service.run_dir / "last-error").chmod(0o600)
    drills.heal(service.simulated_dir, uuid)
    service.start()
    assert not (service.run_dir / "last-error").exists()
    after = service.settled(0, "clean")
    assert (after.setback, after.quarantine) == ("", None)
    events = texts(service)
    stopped = events.index("scrub cancelled, nothing was proven: the service was stopped")
    assert events[stopped + 1 : stopped + 3] == [
        "the service was stopped",
        f"the service started (version {__version__})",
    ]


def test_a_kill_also_ends_the_worker_and_proves_nothing(service):
    """At once, also where the zygote is in no state to see to it."""
    uuid, worker = stalled_scrub(service)
    handle = os.pidfd_open(worker)
    os.kill(children(service.process.pid)[0], signal.SIGSTOP)
    service.kill()
    assert gone_within(handle, WITHIN)
    os.close(handle)
    drills.heal(service.simulated_dir, uuid)
    service.start()
    service.settled(0, "clean")
    events = texts(service)
    cut = events.index("scrub cancelled, nothing was proven: the service was stopped or killed during the job")
    assert f"(version {__version__}); its last run was interrupted" in events[cut - 1]
    assert any(text.startswith("proven clean") for text in events[cut:])


def test_a_killed_zygote_is_replaced_and_proves_nothing(service):
    uuid, worker = stalled_scrub(service)
    handle = os.pidfd_open(worker)
    [zygote] = children(service.process.pid)
    os.kill(zygote, signal.SIGKILL)
    assert gone_within(handle, WITHIN)
    os.close(handle)
    drills.heal(service.simulated_dir, uuid)
    after = service.settled(0, "clean")
    assert after.quarantine is None
    events = texts(service)
    cut = next(number for number, text in enumerate(events) if "the zygote that it was forked from" in text)
    assert any(text.startswith("proven clean") for text in events[cut:])
    assert children(service.process.pid) != [zygote]


def test_a_proof_ends_when_the_service_was_away(service):
    before = service.settled(0, "clean").receipt.id
    service.kill()
    service.start()
    service.hear("job ended")
    assert service.settled(0, "clean").receipt.id != before


@pytest.mark.parametrize("how", ["written", "renamed", "hangup"])
def test_only_a_policy_file_without_faults_replaces_the_policy(short_tmp, how):
    file = short_tmp / "site.yaml"
    file.write_text(load.read_shipped("fast").replace("name: fast", "name: before"))
    handle = os.open(file, os.O_RDWR)
    service = Service(short_tmp, 1, "--policy", file)

    def change(text: str) -> None:
        if how == "written":
            file.write_text(text)
        elif how == "renamed":
            (short_tmp / "aside").write_text(text)
            (short_tmp / "aside").rename(file)
        else:
            # A file that stays open for writing is no finished change: only the signal says that it is one.
            os.ftruncate(handle, 0)
            os.pwrite(handle, text.encode(), 0)
            service.process.send_signal(signal.SIGHUP)

    change("name: [")
    said = service.hear("not loaded")
    assert "site.yaml:1" in said["faults"]
    status = service_call.ask(service.run_dir, lambda admin: admin.status())
    assert (status.service.policy, "site.yaml:1" in status.service.policy_fault) == ("before", True)
    change(load.read_shipped("fast").replace("name: fast", "name: after"))
    service.hear("policy loaded")
    status = service_call.ask(service.run_dir, lambda admin: admin.status())
    assert (status.service.policy, status.service.policy_fault) == ("after", "")
    await_text(service, "policy after (digest ")
    service.stop()
    service.start()  # it is the policy of the last row
    in_force = [text for text in texts(service) if "is in force" in text]
    assert [text.partition(" (digest")[0] for text in in_force] == ["policy before", "policy after"]
    service.stop()
    os.close(handle)


def test_a_restart_with_a_broken_policy_file_serves(service):
    """With the last policy that had no faults; the status and the answer to probes say so."""
    service.stop()
    file = service.root / "site.yaml"
    file.write_text(load.read_shipped("fast").replace("name: fast", "name: before"))
    service.command += ["--policy", file, "--metrics-address", "127.0.0.1:0"]
    service.start()
    service.settled(0, "clean")
    service.stop()
    file.write_text("name: [")
    service.start()
    assert [line for line in map(json.loads, service.log_lines) if line["event"].startswith("policy not loaded")]
    service.settled(0, "clean")
    status = service_call.ask(service.run_dir, lambda admin: admin.status())
    assert status.service.policy == "before"
    fault, _, stays = status.service.policy_fault.rpartition("\n")
    assert ("site.yaml:1" in fault, stays.startswith("the last policy without faults is in force: before")) == (
        True,
        True,
    )
    code, ready = fetch(address_of(service), "/readyz")
    assert (code, ready.startswith("ready\nnote: ")) == (200, True)
    assert f"{file} is not in force, and {stays}; `autoclave doctor` says why\n" in ready
    file.write_text(load.read_shipped("fast").replace("name: fast", "name: after"))
    assert service.hear("policy loaded")["policy"] == "after"
    assert fetch(address_of(service), "/readyz") == (200, "ready\n")


def test_a_standby_takes_the_last_policy_without_faults(service, standing_by):
    """It was in force in the other service, and came after the start of this one."""
    service.stop()
    file = service.root / "site.yaml"

    def write(name: str) -> None:
        file.write_text(load.read_shipped("fast").replace("name: fast", f"name: {name}"))

    write("first")
    service.command += ["--policy", file]
    service.start()
    service.settled(0, "clean")
    second = standing_by()
    write("newer")
    service.hear("policy loaded")
    write("[")
    service.hear("policy not loaded")
    service.stop()
    assert second.hear("serving")["policy"] == "newer"
    second.stop()


def test_an_unreadable_policy_file_is_read_again(service):
    """Its change is reported once, and may come while the service can open no file."""
    service.stop()
    file = service.root / "site.yaml"
    file.write_text(load.read_shipped("fast").replace("name: fast", "name: before"))
    service.command += ["--policy", file]
    service.start()
    limits = resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    changed = service.root / "changed.yaml"
    changed.write_text(load.read_shipped("fast").replace("name: fast", "name: after"))
    changed.replace(file)
    said = service.hear("policy not loaded")
    assert (said["level"], "Too many open files" in said["faults"]) == ("warning", True)
    resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, limits)
    assert service.hear("policy loaded")["policy"] == "after"
    file.unlink()
    assert "found no such file" in service.hear("policy not loaded")["faults"]


@pytest.mark.skipif(not ISOLATES, reason="takes root, or user namespaces, to have no inotify instance")
def test_without_inotify_the_policy_file_is_read_every_few_seconds(service):
    """As on a node where another container that runs as root has taken all of them."""
    service.stop()
    file = service.root / "site.yaml"
    file.write_text(load.read_shipped("fast").replace("name: fast", "name: before"))
    service.command = [*WITHOUT_WATCHES, *service.command, "--policy", file]
    service.start()
    assert "Too many open files" in service.hear("cannot watch the policy file")["error"]
    file.write_text(load.read_shipped("fast").replace("name: fast", "name: after"))
    assert service.hear("policy loaded")["policy"] == "after"
    doctor = [*service.command[: len(WITHOUT_WATCHES) + 3], "doctor", "--only", "file-watches"]
    report = subprocess.run(
        [*doctor, "--run-dir", service.run_dir], capture_output=True, text=True, timeout=WITHIN, check=False
    )
    assert "this user can watch no file" in report.stdout, report.stderr


@pytest.mark.skipif(not ISOLATES, reason="takes root, or user namespaces, to have few inotify instances")
def test_no_gpu_is_handed_out_while_its_watch_fails(service):
    """The watch on its memory fails, until the limit is raised. Another container may have taken all instances."""
    service.settled(0, "clean")
    service.stop()
    service.command = [*with_inotify(2), *service.command]  # one for the alarm, and one of the two for the watch
    service.start()
    shown = service.settled(0, "clean", "dirty", "unknown")
    with pytest.raises(AutoclaveError, match=r"raise sysctl fs\.inotify\.max_user_instances") as refused:
        acquire(service, shown.device)
    assert refused.value.reason is Reason.SHORTAGE
    shown = device(service)
    assert shown.use_counter.startswith("not known: the scrub service cannot watch its memory")
    assert shown.use_counter_kind == "unknown"
    raised = "echo 128 > /proc/sys/user/max_inotify_instances"
    inside = ["nsenter", "--preserve-credentials", "-U", "-t", str(service.process.pid)]
    subprocess.run([*inside, "sh", "-c", raised], check=True)
    shown = service.settled(0, "clean")
    assert (shown.use_counter, shown.use_counter_kind, shown.receipt.witness) == (
        "watch on files",
        "files",
        "watch on files",
    )


def test_a_hangup_during_the_start_is_answered_after_it(service):
    """The start waits for its configuration when the signal comes."""
    service.stop()
    config = service.root / "config.yaml"
    os.mkfifo(config)
    service.command += ["--config", config]

    def hang_up() -> None:
        with config.open("w") as file:  # waits until the service reads
            service.process.send_signal(signal.SIGHUP)
            file.write("policy: fast")

    interrupting = threading.Thread(target=hang_up)
    interrupting.start()
    service.start()
    interrupting.join()
    assert service_call.ask(service.run_dir, lambda admin: admin.status()).service.policy == "fast"
    blocked = (Path("/proc") / str(service.process.pid) / "status").read_text().split("SigBlk:\t")[1][:16]
    assert int(blocked, 16) == 0


def test_a_state_directory_writable_by_others_is_refused(service):
    service.stop()
    state = service.root / "state"
    state.chmod(0o770)
    done = subprocess.run(service.command, capture_output=True, text=True, timeout=WITHIN, check=False)
    assert done.returncode == 2
    assert f"cannot use state directory {state}: other users may write to it" in done.stderr
    assert "--state-dir" in done.stderr


def test_an_emptied_driver_file_has_a_remedy(service):
    """A power cut empties what was not written to the disk yet."""
    before = service.settled(0, "clean")
    service.stop()
    driver = service.simulated_dir / "driver.json"
    driver.write_text("")
    done = subprocess.run(service.command, capture_output=True, text=True, timeout=WITHIN, check=False)
    assert (done.returncode, f"stop the service, remove {driver}: " in done.stderr) == (1, True)
    driver.unlink()
    service.start()
    service.hear("job ended")
    after = service.settled(0, "clean")
    assert (after.device, after.receipt.id == before.receipt.id) == (before.device, False)


def test_a_damaged_ledger_is_set_aside_and_logged(service):
    service.settled(0, "clean")
    service.stop()
    ledger = service.root / "state/ledger.db"
    with sqlite3.connect(ledger) as database:
        database.execute("UPDATE entries SET body = replace(body, '1048576', '1048577') WHERE kind = 'scrub-passed'")
    database.close()
    service.start("ledger set aside")
    [aside] = ledger.parent.glob("ledger.db.corrupt-*Z")
    assert aside.stat().st_size > 0
    service.hear("serving")
    assert service_call.ask(service.run_dir, lambda admin: admin.status()).service.set_aside == (aside.name,)
    shown = service.popen("status", stdout=-1, stderr=-1)
    assert f"was set aside as {aside.name}" in shown.communicate(timeout=WITHIN)[1]
    service.settled(0, "clean")
    events = texts(service)
    assert events[2].startswith("found ")
    assert "(nothing was known of its memory) started" in events[3]


def address_of(service):
    """Where the service shows its metrics and answers probes."""
    return next(json.loads(line)["address"] for line in reversed(service.log_lines) if "showing metrics" in line)


def test_a_full_disk_grants_nothing_until_it_has_room(service):
    service.stop()
    service.command += ["--metrics-address", "127.0.0.1:0"]
    service.start()
    uuid, address = service.settled(0, "clean").device, address_of(service)
    assert fetch(address, "/readyz") == (200, "ready\n")
    # A limit on the size of files: every write fails, and it can be lifted again.
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    with pytest.raises(AutoclaveError) as refusal:
        acquire(service, uuid)
    assert refusal.value.reason is Reason.LEDGER_UNAVAILABLE
    assert "cannot write to the ledger" in refusal.value.message
    shown = device(service)
    assert (shown.state, shown.healthy, shown.why) == ("clean", False, "the ledger cannot be written")
    assert fetch(address, "/readyz") == (503, "not ready: the ledger cannot be written\n")
    assert fetch(address, "/healthz") == (200, "ok\n")
    assert {"autoclave_ready 0.0", "autoclave_ledger_fault 1.0"} <= {*metrics(address).splitlines()}
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    async def until_healthy(admin: admin_client.AdminClient) -> None:
        while not (status := await admin.status()).devices[0].healthy:
            await admin.status(newer_than=status.service.ledger_rows, wait=5)

    service_call.ask(service.run_dir, until_healthy)
    assert acquire(service, uuid)
    assert service.process.poll() is None
    [outage] = [text for text in texts(service) if text.startswith("the ledger could not be written for")]
    assert "cannot write to the ledger" in outage


def test_an_unopenable_ledger_refuses_all_requests_with_its_reason(service, monkeypatch):
    service.settled(0, "clean")
    systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    systemd.bind(f"{service.root}/notify")
    monkeypatch.setenv("NOTIFY_SOCKET", f"{service.root}/notify")
    service.stop()
    service.command += ["--metrics-address", "127.0.0.1:0"]
    with files_of_at_most(0):
        service.process = service.popen("scrubber", *service.command[4:], stderr=-1)
    service.follow()
    service.hear("no ledger: nothing is granted")
    with systemd:
        assert systemd.recv(4096).startswith(b"READY=1\nSTATUS=grants nothing: cannot")
    with pytest.raises(AutoclaveError) as refusal:
        device(service)
    assert refusal.value.reason is Reason.LEDGER_UNAVAILABLE
    address = address_of(service)
    assert fetch(address, "/healthz") == (200, "ok\n")
    status, why = fetch(address, "/readyz")
    assert (status, why.startswith("not ready: cannot "), "ledger" in why) == (503, True, True)
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE))
    service.hear("serving")
    assert device(service).state in {"clean", "scrubbing"}
    [_, outage, *_] = [text for text in texts(service) if text.startswith(("the service was", "the ledger could"))]
    assert outage.startswith("the ledger could not be written for ")


def test_a_stopped_process_says_afterwards_that_it_stood_still(service):
    """In its history, where no GPU is named. The test stops the process for as long as the row is about."""
    service.process.send_signal(signal.SIGSTOP)
    time.sleep(standstills.LONG + standstills.PAUSE)
    service.process.send_signal(signal.SIGCONT)
    assert service.hear("the service stood still for ")["level"] == "warning"
    assert [text for text in texts(service) if text.startswith("the service stood still for ")]


async def test_a_stop_without_a_ledger_frees_gpus_and_zygote(short_tmp, monkeypatch):
    config = ScrubberConfig(BackendChoice.SIMULATED, state_dir=short_tmp, run_dir=short_tmp, kubelet_dir=short_tmp)
    pool, backend = WorkerPool(warm_cuda=False), assembly.build_backend(config)

    def stopped_meanwhile(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise LedgerUnavailable("the disk is full")

    monkeypatch.setattr(assembly, "open_ledger", stopped_meanwhile)
    others = children()  # of other tests
    await pool.start()
    [zygote] = {*children()} - {*others}
    handle = os.pidfd_open(zygote)
    assert await daemon._run_service(config, backend, ActivePolicy("fast"), daemon._Metrics(), pool) == 0
    assert gone_within(handle, WITHIN)
    os.close(handle)
    assembly.build_backend(config).close()  # as the next service does


class QuietFence:
    """Stands where guard and openers stand: the kernel of this machine may have no fence."""

    def close(self) -> None:
        pass

    async def write(self, *, ends: bool = False) -> None:
        pass

    async def run(self) -> None:
        await asyncio.Event().wait()


async def test_the_parts_start_and_stop_in_this_order(short_tmp, monkeypatch):
    """Each line that moves changes this list, and would let a use, a grant or a row be missed."""
    order: list[str] = []

    def traced(owner, name, says) -> None:
        call = getattr(owner, name)

        def tell(*args, **more) -> object:
            order.append(says or type(args[-1]).__name__)
            return call(*args, **more)

        monkeypatch.setattr(owner, name, tell)

    def built(*args) -> assembly.Assembly:
        fence: Any = QuietFence()
        traced(fence, "write", "openers' rows")
        traced(fence, "close", "fence's end")
        return replace(build(*args), guard=fence, openers=fence)

    build = assembly.build
    monkeypatch.setattr(assembly, "build", built)
    config = ScrubberConfig(BackendChoice.SIMULATED, state_dir=short_tmp, run_dir=short_tmp, kubelet_dir=short_tmp)
    pool, backend = WorkerPool(warm_cuda=False), assembly.build_backend(config)
    for owner, calls in TRACED.items():
        for name, says in calls.items():
            traced(owner, name, says)
    traced(backend, "alarm", "alarm")
    traced(backend, "close", "GPUs' end")
    monkeypatch.setattr(daemon._Metrics, "register", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    assert await daemon._run_service(config, backend, ActivePolicy("fast"), daemon._Metrics(), pool) == 0
    first = order.index("tasks")
    assert order[:first] == [
        "ledger", "ServiceStarted", "parts", "alarm", "PolicyInForce", "workers", "recovery", "round", "openers' rows",
        "sockets",
    ]  # fmt: skip
    last = order.index("jobs' end")
    assert order[last:] == [
        "jobs' end", "workers' end", "sockets' end", "fence's end", "openers' rows", "ServiceStopped", "ledger's end",
        "GPUs' end",
    ]  # fmt: skip


@pytest.mark.usefixtures("executed")
@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_hears_readiness_signs_of_life_and_the_stop(short_tmp, monkeypatch, abstract):
    address = f"@{short_tmp}" if abstract else f"{short_tmp}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address.replace("@", "\0"))
        systemd.settimeout(WITHIN)

        def received(line: str) -> list[str]:
            while line not in (said := systemd.recv(4096).decode().splitlines()):
                pass
            return said

        monkeypatch.setenv("NOTIFY_SOCKET", address)
        monkeypatch.setenv("WATCHDOG_USEC", "100000")
        service = Service(short_tmp, 1)
        assert received("READY=1")[1] == "STATUS=serving, devices: 1"
        assert device(service).device  # it answers
        received("WATCHDOG=1")
        service.stop()
        received("STOPPING=1")


async def test_systemd_hears_readiness_although_its_queue_was_full(short_tmp, monkeypatch):
    """A start that takes long fills the queue with signs of life, if systemd is busy."""
    monkeypatch.setenv("NOTIFY_SOCKET", f"{short_tmp}/notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as queue, socket.socket(socket.AF_UNIX, queue.type) as sender:
        queue.bind(f"{short_tmp}/notify")
        queue.setblocking(False)
        sender.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                sender.sendto(systemd.ALIVE.encode(), f"{short_tmp}/notify")
        systemd.tell(systemd.READY)
        async with asyncio.timeout(WITHIN):
            while await asyncio.get_running_loop().sock_recv(queue, 4096) != systemd.READY.encode():
                pass


@pytest.fixture
def standing_by(service):
    """Starts a second service on the directories of the first one, until it waits."""
    started: list[Service] = []

    def start(*flags) -> Service:
        second: Service = copy(service)
        started.append(second)
        second.command = [*service.command, "--standby", *map(str, flags)]
        second.start("waiting for another scrub service to stop")
        return second

    yield start
    for second in started:
        if second.process.poll() is None:
            second.kill()


@pytest.mark.parametrize(
    ("end", "name", "logged"),
    [(Service.stop, "after", "policy loaded"), (Service.kill, "[", "policy not loaded; the old policy stays in force")],
)
def test_a_service_on_standby_serves_when_the_other_one_ends(service, standing_by, end, name, logged):
    service.settled(0, "clean")
    policy, text = service.root / "site.yaml", load.read_shipped("fast").replace("name: fast", "name: before")
    policy.write_text(text)
    second = standing_by("--metrics-address", "127.0.0.1:0", "--policy", policy)
    assert json.loads(second.log_lines[-1])["pid"] == service.process.pid
    address = next(line["address"] for line in map(json.loads, second.log_lines) if "address" in line)
    second.hear("zygote ready")
    # Only when it is ready does a rolling update stop the other service.
    assert fetch(address, "/readyz") == (200, "ready\n")
    shown = metrics(address)
    assert "autoclave_ready" not in shown  # it hands out nothing
    assert "process_start_time_seconds" not in shown  # or the series of the other one would not count any more
    policy.write_text(text.replace("name: before", f"name: {name}"))
    end(service)
    assert second.hear("serving")["policy"] == ("before" if name == "[" else name)  # in force at the first look
    assert [line for line in second.log_lines if logged in line]
    second.settled(0, "clean")
    assert "process_start_time_seconds" in metrics(address)
    second.stop()


def test_a_service_on_standby_opens_no_gpu_socket_or_ledger(service, standing_by):
    service.settled(0, "clean")
    before = {path: path.stat().st_ino for path in service.root.rglob("*")}
    second = standing_by()
    second.hear("zygote ready")
    processes = [second.process.pid, *children(second.process.pid)]
    opened = {file.readlink() for pid in processes for file in Path(f"/proc/{pid}/fd").iterdir()}
    assert {path for path in opened if path.is_relative_to(service.root)} <= {service.run_dir / "lock"}  # for a moment
    assert {path: path.stat().st_ino for path in service.root.rglob("*")} == before
    second.stop()


async def test_a_service_that_does_not_stop_is_named(short_tmp, monkeypatch):
    """An update takes less than ten minutes. Later, a service on standby does not count as one that serves."""
    lock = unix_sockets.lock_run_dir(short_tmp)
    assert lock is not None
    monkeypatch.setattr(daemon, "STANDBY_REPORTS_EVERY", 0.0)
    monkeypatch.setattr(daemon, "STANDBY_READY_FOR", 0.0)
    metrics, pool = daemon._Metrics(), WorkerPool(warm_cuda=False)
    answers = iter([None, None, lock])
    shown: list[str] = []

    def try_again(_directory: Path) -> int | None:
        shown.extend(metrics.obstacles())
        return next(answers)

    monkeypatch.setattr(unix_sockets, "lock_run_dir", try_again)
    with capture_logs() as lines:
        assert await daemon._stand_by(short_tmp, pool, metrics) == lock
    assert [(line["log_level"], line["event"], line["pid"]) for line in lines[:2]] == [
        ("info", "waiting for another scrub service to stop", os.getpid()),
        ("warning", "another scrub service has not stopped", os.getpid()),
    ]
    assert shown == ["the service is starting", *["another scrub service has not stopped for 0 s"] * 2]
    assert metrics.obstacles() == ("the service is starting",)
    os.close(lock)
    await pool.close()


def test_a_stop_ends_a_service_on_standby_at_once(service, standing_by):
    second = standing_by()
    second.hear("zygote ready")
    [zygote] = children(second.process.pid)
    handle = os.pidfd_open(zygote)
    second.stop()
    assert gone_within(handle, WITHIN)
    os.close(handle)
    assert device(service).device  # the other one still answers
    assert not (service.run_dir / "last-error").exists()


def test_the_probes_are_answered_while_the_driver_opens(service):
    service.stop()
    service.command += ["--metrics-address", "127.0.0.1:0"]
    with private_files.locked(service.simulated_dir):
        service.start("showing metrics")
        address = json.loads(service.log_lines[-1])["address"]
        assert fetch(address, "/healthz") == (200, "ok\n")
        assert fetch(address, "/readyz") == (503, "not ready: the service is starting\n")
    service.hear("serving")


def test_a_second_service_is_refused_and_the_first_goes_on(shared):
    run = shared.popen("scrubber", *shared.command[4:], stderr=-1)
    said = run.communicate(timeout=WITHIN)[1]
    assert run.returncode == 2
    where = f"another autoclave scrubber runs in {shared.run_dir}"
    remedy = "`autoclave doctor` says whether it answers; stop that service first, or use --standby"
    assert said == f"autoclave: cannot start: {where}; {remedy}\n"
    assert device(shared).device
    assert not (shared.run_dir / "last-error").exists()


def test_a_policy_with_faults_ends_a_service_before_its_standby(service):
    """The other one goes on: a rolling update stops there."""
    file = service.root / "site.yaml"
    file.write_text("name: [")
    run = service.popen("scrubber", *service.command[4:], "--standby", "--policy", file, stderr=-1)
    assert "site.yaml:1" in run.communicate(timeout=WITHIN)[1]
    assert run.returncode == 2
    assert device(service).device
    assert not (service.run_dir / "last-error").exists()


def test_two_services_never_share_a_set_of_gpus(shared, short_tmp):
    other = short_tmp / "other"
    flags = ["--backend", "simulated", "--simulated-dir", shared.simulated_dir, "--run-dir", other / "run"]
    run = shared.popen("scrubber", *flags, "--state-dir", other / "state", stderr=-1)
    assert "another autoclave scrubber uses the GPUs" in run.communicate(timeout=WITHIN)[1]
    assert run.returncode == 2
