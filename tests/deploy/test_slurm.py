"""The script for Slurm, as slurmd and the callers of Slurm in pods would call it: on the real service.

The callers are stand-ins: they give file name, arguments, environment and descriptors as the other projects document.
"""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from autoclave.cli import service_call
from scrubber.devices.simulated import drills
from scrubber.fence.kernel import fence
from tests.control_groups import identity
from tests.deploy.jobs import JobService, installed, lives, program

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "slurm" / "autoclave.sh"
SOPERATOR = json.loads((ROOT / "deploy" / "slurm" / "soperator.json").read_text())
LARGEST = 16 * 1024  # bytes: Crusoe takes no larger health check
SECRET = b"what the last job computed"
CONTAINER = f"{os.getpid():064x}"  # of this test run alone: the marks of processes count on the whole machine
GPUS = 20

INFORMATION = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 42\nGPU UUID: \t {}\nDevice Minor: \t {}\n"
FIRST, SECOND = "GPU-0aaaaaaa-0000-4000-8000-000000000000", "GPU-0bbbbbbb-0000-4000-8000-000000000000"


class Slurmd:
    """What slurmd gives to its scripts: an environment with little in it."""

    def __init__(self, root: Path, service: JobService | None) -> None:
        self.programs = programs = root / "programs"
        programs.mkdir()
        run_dir = service.run_dir if service else root / "no-service"
        self.drained, self.state = root / "drained", root / "state"
        self.environment = {
            "AUTOCLAVE_RUN_DIR": str(run_dir), "SLURMD_NODENAME": "node7.example",
            "AUTOCLAVE_SLURM_STATE": str(self.state), "AUTOCLAVE_SLURM_DRIVER": str(root / "no-driver"),
        }  # fmt: skip
        self.asked = root / "asked"  # what the scripts have asked autoclave
        note = f'echo "$AUTOCLAVE_SERVICE_WAIT $*" >> {self.asked}'
        program(programs / "autoclave", f'{note}\nexec {sys.executable} -P -m autoclave "$@"')
        self.environment["PYTHONPATH"] = str(ROOT)
        self.answer = root / "answer"  # of ``scontrol show``
        script = f'if [ "$1" = show ]; then cat {self.answer}; else printf "%s\\n" "$@" >> {self.drained}; fi'
        program(programs / "scontrol", script)

    def alone(self, name: str) -> Path:
        """The script under this name, in a directory of its own."""
        file = self.drained.parent / f"as-{name}" / name
        file.parent.mkdir(exist_ok=True)
        return installed(SCRIPT, file, self.programs)

    @contextmanager
    def begun(
        self, script: str, job: int, gpus: object = "", group: Path | None = None, **more: str
    ) -> Iterator[subprocess.Popen[str]]:
        """``script`` names the turn. No other file is beside it. ``group``: the control group that it runs in."""
        words = {"SLURM_JOB_ID": str(job), "SLURM_JOB_GPUS": str(gpus), "CUDA_VISIBLE_DEVICES": str(gpus)}
        environment, file = self.environment | words | more, self.alone(script)
        enter = ["sh", "-c", 'echo $$ > "$0/cgroup.procs"; exec "$1"', str(group)] if group is not None else []
        process = subprocess.Popen([*enter, file], env=environment, stderr=subprocess.PIPE, text=True, cwd="/")
        assert process.stderr is not None
        try:
            yield process
        finally:  # what it has started ends with the service at the latest
            process.kill()
            process.stderr.close()
            process.wait()

    def run(
        self, script: str, job: int, gpus: object = "", group: Path | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        with self.begun(script, job, gpus, group, **more) as process:
            _, output = process.communicate()
        return subprocess.CompletedProcess(script, process.returncode, stderr=output)

    def output(self) -> list[str]:
        """What scontrol was called with."""
        return self.drained.read_text().splitlines() if self.drained.exists() else []


@pytest.fixture(scope="module")
def service():
    service = JobService("slurm", GPUS)
    yield service
    service.stop()


@pytest.fixture(scope="module")
def unused() -> Iterator[int]:
    return iter(range(GPUS))


@pytest.fixture
def gpu(service, unused):
    index = next(unused)
    service.settled(index, "clean")
    return index


@pytest.fixture
def slurmd(tmp_path, service):
    return Slurmd(tmp_path, service)


def ended(run, code):
    assert run.returncode == code, run.stderr
    return run.stderr


def test_a_prolog_within_the_job_names_its_control_group(service, slurmd, gpu, group: Path) -> None:
    """With PrologFlags=RunInJob, Slurm makes the group first. Without it, the prolog runs in the group of slurmd."""
    slurmd.environment["AUTOCLAVE_SLURM_CGROUPS"] = str(fence.root())
    extern = group / "job_46/step_extern/slurm"
    extern.mkdir(parents=True)
    for within, named in ((extern, identity(group / "job_46")), (group, 0)):
        ended(slurmd.run("prolog.sh", 46, gpu, within), 0)
        history = service_call.ask(service.run_dir, lambda admin: admin.history(str(gpu), kinds=["granted"], limit=1))
        assert json.loads(history[-1].body)["grant"]["group"] == named
        ended(slurmd.run("epilog.sh", 46, gpu, within), 0)


def test_a_job_gets_clean_gpus_and_leaves_none_dirty(service, slurmd, gpu):
    ended(slurmd.run("prolog.sh", 42, gpu), 0)
    assert service.settled(gpu, "granted").receipt
    first = drills.zombie(service.simulated_dir, service.uuid(gpu), SECRET)  # in no container, and ignores SIGTERM
    service.settled(gpu, "in_use")
    drills.kill(first)
    left = drills.zombie(service.simulated_dir, service.uuid(gpu))  # a job's next step, after a pause
    assert service.settled(gpu, "in_use").job is None
    assert SECRET in service.memory(gpu)
    ended(slurmd.run("epilog.sh", 42, gpu), 0)
    assert service.settled(gpu, "clean").receipt
    assert not lives(left)
    assert service.memory(gpu).strip(b"\0") == b""
    assert slurmd.output() == []
    assert list(slurmd.state.iterdir()) == []


def test_a_prolog_waits_for_a_gpu_being_scrubbed(service, slurmd, gpu):
    drills.stall_clears(service.simulated_dir, service.uuid(gpu))
    with slurmd.begun("epilog.sh", 44, gpu) as last, ExitStack() as later:
        service.settled(gpu, "scrubbing")
        run = later.enter_context(slurmd.begun("prolog.sh", 45, gpu))
        assert "cannot" in run.stderr.readline()  # within the budget; now the prolog waits for the scrub
        drills.heal(service.simulated_dir, service.uuid(gpu))
        assert (run.wait(), last.wait()) == (0, 0), run.stderr.read() + last.stderr.read()
    assert service.settled(gpu, "granted").receipt


def test_a_prolog_asks_again_if_its_gpu_was_used(service, slurmd, gpu, tmp_path):
    """After the scrub that it has waited for."""
    turn, autoclave, uuid = tmp_path / "turn", slurmd.programs / "autoclave", service.uuid(gpu)
    os.mkfifo(turn)
    waits = f"{{ echo its turn >&2; read -r _ < {turn}; }}"
    autoclave.write_text(autoclave.read_text().replace("exec", f'[ "$1" = scrub ] || {waits}\nexec'))
    with turn.open("r+b", buffering=0) as turns, slurmd.begun("prolog.sh", 47, gpu) as run:
        for used in (True, True, False):
            assert any("its turn" in line for line in run.stderr), "it asks for the GPU"
            if used:
                drills.stall_clears(service.simulated_dir, uuid)
                drills.kill(drills.zombie(service.simulated_dir, uuid))
            turns.write(b"yes\n")
            if used:
                assert any("cannot" in line for line in run.stderr)
                drills.heal(service.simulated_dir, uuid)
        assert run.wait() == 0, run.stderr.read()


def direct(script, environment):
    """Slurm, Slinky and Crusoe start the file itself."""
    return [script], environment


def run_parts(script, environment):
    """SUNK runs all files of a directory that it makes of a ConfigMap."""
    if shutil.which("run-parts") is None:
        pytest.skip("run-parts is missing (Debian: debianutils)")
    return ["run-parts", "--regex=^[a-z.-]*$", script.parent], environment


def check_runner(script, environment):
    """Soperator's runner: a login shell, with the reason on descriptor 3 and the rest in a file of its own."""
    command = f'{SOPERATOR["command"]} 3>&1 1>"{script.parent}/log" 2>&1'
    turn = environment["SLURM_SCRIPT_CONTEXT"].removesuffix("_slurmd")
    assert turn in SOPERATOR["contexts"]
    words = {"CHECKS_CONTEXT": turn, "HOME": str(script.parent)}
    return ["bash", "-l", "-c", command], environment | words


@pytest.mark.parametrize(
    ("name", "caller"), [("autoclave.sh", direct), ("autoclave-{}.sh", run_parts), ("autoclave.sh", check_runner)]
)
def test_each_caller_gets_its_turn_exit_code_and_reason(service, slurmd, gpu, name, caller):
    def run(turn: str) -> subprocess.CompletedProcess[str]:
        script = slurmd.alone(name.format(turn))
        words = {"SLURM_JOB_ID": "45", "SLURM_JOB_GPUS": str(gpu), "SLURM_SCRIPT_CONTEXT": f"{turn}_slurmd"}
        command, environment = caller(script, slurmd.environment | words)
        return subprocess.run(
            command, cwd=script.parent, env=environment, capture_output=True, text=True, check=False
        )  # fmt: skip

    assert run("prolog").returncode == 0
    assert service.settled(gpu, "granted").receipt
    assert run("epilog").returncode == 0
    assert service.settled(gpu, "clean").receipt.last_owner == "45"
    assert slurmd.output() == []
    service_call.ask(service.run_dir, lambda admin: admin.quarantine(str(gpu), "smells", "somebody"))
    reason = f"job 45: not proven clean: GPU {gpu} is quarantined (run autoclave explain {gpu})"
    for turn in ("prolog", "epilog"):
        slurmd.drained.unlink(missing_ok=True)
        refused = run(turn)
        assert refused.returncode == 1
        if caller is check_runner:
            assert (refused.stdout, slurmd.output()) == (f"{reason}\n", [])
        else:
            update = ["update", "nodename=node7.example", "state=drain", f"reason=autoclave: {reason}"]
            assert slurmd.output() == update


@pytest.mark.parametrize(
    ("name", "words", "environment", "asked"),
    [
        ("autoclave.sh", ["epilog"], {"SLURM_SCRIPT_CONTEXT": "prolog_slurmd"}, "release"),
        ("autoclave.sh", [], {"SLURM_SCRIPT_CONTEXT": "prolog_slurmd"}, "acquire"),
        ("epilog-autoclave.sh", [], {}, "release"),  # Slinky: the chart writes the word before the name of the value
        ("50-autoclave-prolog", [], {}, "acquire"),  # Crusoe
        ("health.sh", [], {}, "doctor"),
        ("autoclave.sh", [], {"CHECKS_CONTEXT": "hc_program"}, "doctor"),
        ("50-autoclave-health", [], {}, "doctor"),
        ("autoclave.sh", [], {}, None),
        ("autoclave.sh", [], {"SLURM_SCRIPT_CONTEXT": "prolog_slurmctld"}, None),
        ("autoclave.sh", [], {"SLURM_SCRIPT_CONTEXT": "epilog_task"}, None),
    ],
)
def test_argument_name_or_context_says_whose_turn(tmp_path, name, words, environment, asked):
    slurmd = Slurmd(tmp_path, None)
    slurmd.answer.touch()
    program(tmp_path / "programs" / "autoclave", f'echo "$1" >> {slurmd.asked}')
    command = [slurmd.alone(name), *words]
    environment |= slurmd.environment | {"SLURM_JOB_ID": "45", "SLURM_JOB_GPUS": "0"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (run.returncode == 2) is (asked is None), run.stderr
    assert (slurmd.asked.read_text().split()[0] if slurmd.asked.exists() else None) == asked
    assert slurmd.output() == [], "only a turn may drain the node"


@pytest.mark.parametrize("name", ["autoclave.sh", "50-autoclave-prolog"])
def test_a_question_for_help_is_no_turn(tmp_path, name):
    slurmd = Slurmd(tmp_path, None)
    environment = slurmd.environment | {"SLURM_JOB_ID": "45", "SLURM_JOB_GPUS": "0"}
    run = subprocess.run([slurmd.alone(name), "--help"], env=environment, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr, slurmd.asked.exists(), slurmd.output()) == (0, "", False, [])
    assert run.stdout.startswith(f"Usage: {name} [prolog | epilog | health | gpus]\n")


@pytest.mark.parametrize("words", [["foo"], ["--version"], ["prolog", "foo"]])
def test_an_unknown_word_drains_no_node(tmp_path, words):
    """Whatever the file's name and the variables say: a person has typed it."""
    slurmd = Slurmd(tmp_path, None)
    environment = slurmd.environment | {"CUDA_VISIBLE_DEVICES": "0", "SLURM_SCRIPT_CONTEXT": "prolog_slurmd"}
    command = [slurmd.alone("prolog-autoclave.sh"), *words]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (run.returncode, slurmd.asked.exists(), slurmd.output()) == (2, False, []), run.stderr
    assert run.stderr.startswith(f"autoclave: cannot run '{' '.join(words)}': ")


def test_a_line_in_the_script_can_say_the_turn(tmp_path):
    slurmd = Slurmd(tmp_path, None)
    script = slurmd.alone("source")
    first, rest = script.read_text().split("\n\n", 1)
    script.write_text(f"{first}\nset -- prolog\n\n{rest}")
    assert subprocess.run([script], env=slurmd.environment | {"SLURM_JOB_ID": "45"}, check=False).returncode == 0


def test_the_script_fits_every_caller():
    text = SCRIPT.read_text()
    assert len(text.encode()) <= LARGEST
    assert "{{" not in text, "Soperator's chart takes it for a template"
    assert SOPERATOR.keys() == {"name", "command", "contexts", "on_fail"}  # its other fields have defaults that fit
    assert SOPERATOR["on_fail"] == "drain"


def test_an_epilog_after_the_release_drains_no_node(service, slurmd, gpu):
    ended(slurmd.run("prolog.sh", 52, gpu), 0)
    assert service.popen("release", gpu, stdout=subprocess.DEVNULL).wait() == 0
    assert "was not held" in ended(slurmd.run("epilog.sh", 52, gpu), 0)
    assert slurmd.output() == []


def test_a_node_without_a_slurm_name_uses_its_hostname(slurmd):
    program(slurmd.drained.parent / "programs" / "uname", "echo node8.example.org")
    ended(slurmd.run("prolog.sh", 45, "nonsense", SLURMD_NODENAME=""), 2)
    assert slurmd.output()[1] == "nodename=node8"


async def begin_scrub(admin, gpu):
    return [it async for it in admin.scrub([str(gpu)], no_wait=True)]


def test_scripts_give_up_in_time_and_say_so(service, slurmd, gpu):
    drills.stall_clears(service.simulated_dir, service.uuid(gpu))
    # On a slow machine, the script may give up before it has asked.
    service_call.ask(service.run_dir, lambda admin: begin_scrub(admin, gpu))
    ended(slurmd.run("epilog.sh", 46, gpu, AUTOCLAVE_SLURM_LIMIT="2"), 124)
    reason = f"reason=autoclave: job 46: not proven clean within 2 s: GPU {gpu} is scrubbing"
    assert slurmd.output()[-1].startswith(reason)
    rest = slurmd.output()[-1].removeprefix(reason)
    assert re.fullmatch(rf" \(run autoclave explain {gpu}\)|: ready in about \d+ s", rest)


def test_the_reason_says_that_the_program_is_not_found(slurmd):
    """The script sets its own path, as it runs as root."""
    (slurmd.programs / "autoclave").unlink()
    assert slurmd.run("prolog.sh", 4701, 0).returncode == 127
    assert "there is no autoclave in the PATH that the script sets" in slurmd.output()[-1]


def test_gpus_of_another_job_are_left_alone(service, slurmd, gpu):
    """Where two jobs were given one GPU, the second does not start. Its epilog ends nothing of the first."""
    ended(slurmd.run("prolog.sh", 47, gpu), 0)
    pid = drills.zombie(service.simulated_dir, service.uuid(gpu), SECRET)
    service.settled(gpu, "in_use")
    ended(slurmd.run("prolog.sh", 48, gpu), 4)
    assert slurmd.output()[-1] == f"reason=autoclave: job 48: left alone: GPU {gpu} belongs to job 47"
    slurmd.drained.unlink()
    ended(slurmd.run("epilog.sh", 48, gpu), 0)
    assert slurmd.output() == []
    assert service.settled(gpu, "in_use").job is None
    assert lives(pid)
    assert SECRET in service.memory(gpu)
    drills.kill(pid)
    ended(slurmd.run("epilog.sh", 47, gpu), 0)


def test_the_reason_names_only_the_gpus_in_the_way(service, slurmd, gpu, unused):
    sick, clean = next(unused), next(unused)
    service_call.ask(service.run_dir, lambda admin: admin.quarantine(str(sick), "smells", "somebody"))
    ended(slurmd.run("prolog.sh", 52, gpu), 0)
    ended(slurmd.run("prolog.sh", 53, f"{gpu},{sick},{clean}"), 1)
    found = f"GPU {gpu} belongs to job 52; GPU {sick} is quarantined (run autoclave explain {sick})"
    assert slurmd.output()[-1] == f"reason=autoclave: job 53: not proven clean: {found}"
    assert service.settled(clean, "clean").receipt
    ended(slurmd.run("epilog.sh", 52, gpu), 0)


def test_the_reason_is_the_ledger_where_it_cannot_be_written(service, slurmd, gpu):
    """Then the state of the GPU is not the cause, and stays what it was before."""
    ended(slurmd.run("prolog.sh", 57, gpu), 0)
    pid = service.process.pid
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    ended(slurmd.run("epilog.sh", 57, gpu), 1)
    cause = "the scrub service cannot write its ledger (run autoclave doctor --without-kubernetes)"
    assert slurmd.output()[-1] == f"reason=autoclave: job 57: not proven clean: {cause}"
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    ended(slurmd.run("epilog.sh", 57, gpu), 0)


def test_a_gpu_in_use_keeps_none_of_the_others(service, slurmd, gpu, unused):
    """An epilog tries every GPU of its job, keeps those it could not give back on record, and can be run again."""
    others = [next(unused), next(unused)]
    ended(slurmd.run("prolog.sh", 55, f"{gpu},{others[0]},{others[1]}"), 0)
    drills.occupy(service.simulated_dir, service.uuid(gpu), SECRET, CONTAINER)
    service.settled(gpu, "in_use")
    ended(slurmd.run("epilog.sh", 55, f"{gpu},{others[0]},{others[1]}"), 1)
    reason = f"reason=autoclave: job 55: not proven clean: GPU {gpu} is in use (run autoclave explain {gpu})"
    assert slurmd.output()[-1] == reason
    assert all(service.settled(other, "clean").receipt for other in others)
    assert (slurmd.state / "55").read_text() == f"{gpu}\n"
    ended(slurmd.run("prolog.sh", 56, f"{others[0]},{others[1]}"), 0)
    ended(slurmd.run("epilog.sh", 56), 0)
    assert drills.release(service.simulated_dir, service.uuid(gpu))
    ended(slurmd.run("epilog.sh", 55), 0)
    assert list(slurmd.state.iterdir()) == []


def test_jobs_in_the_pod_of_slurmd_follow_each_other(service, slurmd, gpu, unused):
    """The kubelet gave all GPUs to the pod, which lives on when a job ends. What it has open is not given back."""
    other = next(unused)
    service.settled(other, "clean")
    entry = {
        "PodUID": CONTAINER, "ContainerName": "slurmd", "ResourceName": "nvidia.com/gpu",
        "DeviceIDs": {"0": [service.uuid(gpu), service.uuid(other)]},
    }  # fmt: skip
    checkpoint = service.root / "kubelet_internal_checkpoint"
    checkpoint.write_text(json.dumps({"Data": {"PodDeviceEntries": [entry], "RegisteredDevices": {}}, "Checksum": 0}))
    ended(slurmd.run("prolog.sh", 57, gpu), 0)
    ended(slurmd.run("prolog.sh", 58, other), 0)
    for each in (gpu, other):
        drills.occupy(service.simulated_dir, service.uuid(each), SECRET, CONTAINER)
        service.settled(each, "in_use")
    ended(slurmd.run("epilog.sh", 57, gpu), 1)
    drills.release(service.simulated_dir, service.uuid(gpu))
    ended(slurmd.run("epilog.sh", 57, gpu), 0)
    assert service.settled(gpu, "clean").receipt.last_owner == "57"
    assert service.memory(gpu).strip(b"\0") == b""
    ended(slurmd.run("prolog.sh", 59, gpu), 0)
    drills.release(service.simulated_dir, service.uuid(other))
    ended(slurmd.run("epilog.sh", 58), 0)
    ended(slurmd.run("epilog.sh", 59), 0)
    checkpoint.unlink()


def test_the_epilog_releases_what_a_killed_prolog_acquired(service, slurmd, gpu):
    """The ledger says whose the GPU is, so the record of the prolog is not needed."""
    ended(slurmd.run("prolog.sh", 54, gpu), 0)
    (slurmd.state / "54").unlink()
    ended(slurmd.run("epilog.sh", 54, gpu), 0)
    assert service.settled(gpu, "clean").receipt.last_owner == "54"


def test_the_health_check_drains_a_node_without_proofs(tmp_path, slurmd):
    slurmd.answer.write_text("NodeName=node7.example State=IDLE")
    ended(slurmd.run("health.sh", 0), 0)
    assert slurmd.output() == []
    (tmp_path / "cut").mkdir()
    cut = Slurmd(tmp_path / "cut", None)
    cut.answer.write_text("NodeName=node7.example State=IDLE")
    ended(cut.run("health.sh", 0), 1)
    assert cut.output()[-2:] == ["state=drain", "reason=autoclave: doctor: service, run-dir broken, exit code 1"]
    cut.drained.unlink()
    cut.answer.write_text("NodeName=node7.example State=IDLE+DRAIN Reason=a new fan")
    ended(cut.run("health.sh", 0), 0)
    assert cut.output() == []


@pytest.mark.parametrize("script", ["prolog.sh", "epilog.sh"])
def test_an_unanswered_check_drains_the_node(tmp_path, slurmd, script):
    (tmp_path / "cut").mkdir()
    cut = Slurmd(tmp_path / "cut", None)
    ended(cut.run(script, 49, "0-2"), 3)
    assert cut.asked.read_text().count("\n") == 1, "each question of a service that is down costs seconds"
    assert cut.asked.read_text().startswith("1500ms ")
    reason = "reason=autoclave: job 49: GPUs 0 1 2: not proven clean: the scrub service does not answer"
    assert cut.output()[-1] == f"{reason}: run autoclave doctor --without-kubernetes on node7.example"
    ended(slurmd.run(script, 49, 99), 2)
    assert slurmd.output()[-1] == "reason=autoclave: job 49: unknown to the scrub service, or named wrongly: GPUs 99"
    ended(slurmd.run(script, 49, "0,x"), 2)
    assert "is not a list of them" in slurmd.run(script, 49, "0,x", AUTOCLAVE_SLURM_DRAIN="no").stderr


def test_a_job_without_gpus_asks_no_service(tmp_path):
    slurmd = Slurmd(tmp_path, None)
    for script in ("prolog.sh", "epilog.sh"):
        assert ended(slurmd.run(script, 50), 0) == ""
        assert ended(slurmd.run(script, 50, CUDA_VISIBLE_DEVICES="NoDevFiles"), 0) == ""


def test_a_shared_gpu_is_refused(tmp_path):
    slurmd = Slurmd(tmp_path, None)
    ended(slurmd.run("prolog.sh", 51, 0, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50"), 2)
    assert slurmd.output()[-1] == "reason=autoclave: job 51 shares a GPU, and what is shared cannot be proven clean"


def gpus(driver, **words):
    """What the scripts take the job's GPUs to be; None where they cannot tell."""
    run = subprocess.run(
        [SCRIPT, "gpus"], env={"AUTOCLAVE_SLURM_DRIVER": str(driver)} | words,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return run.stdout.split() if run.returncode == 0 else None


@pytest.fixture
def driver(tmp_path):
    """A driver's own list: by PCI address, and by minor the other way round where that is wanted."""

    def make(*minors: int) -> Path:
        for place, (name, minor) in enumerate(zip((FIRST, SECOND), minors, strict=True)):
            folder = tmp_path / "driver" / "gpus" / f"0000:{place + 1}a:00.0"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "information").write_text(INFORMATION.format(name, minor))
        return Path(tmp_path, "driver")

    return make


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ({}, []),
        ({"SLURM_JOB_GPUS": "0,2-4"}, ["0", "2", "3", "4"]),
        ({"SLURM_JOB_GPUS": "1,1,01"}, ["1"]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["1"]),
        ({"SLURM_JOB_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": f"{FIRST},MIG-7"}, [FIRST, "MIG-7"]),
        ({"SLURM_JOB_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": FIRST}, None),
        ({"SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "1"}, None),
        ({"CUDA_VISIBLE_DEVICES": f"{FIRST},1"}, None),
        ({"SLURM_JOB_GPUS": "3-1"}, None),
        ({"SLURM_JOB_GPUS": "0-9999"}, None),
        ({"SLURM_JOB_GPUS": "*"}, None),
        ({"SLURM_JOB_GPUS": "0;id"}, None),
        ({"SLURM_JOB_GPUS": "--all"}, None),
        ({"SLURM_JOB_GPUS": "2-3", "AUTOCLAVE_SLURM_GRES": "0-2,4-7"}, ["2", "4"]),
        ({"SLURM_JOB_GPUS": "7", "AUTOCLAVE_SLURM_GRES": "0-2,4-7"}, None),
        ({"SLURM_JOB_GPUS": "0", "AUTOCLAVE_SLURM_GRES": "all"}, None),
        ({"CUDA_VISIBLE_DEVICES": FIRST, "AUTOCLAVE_SLURM_GRES": "1"}, [FIRST]),
        ({"AUTOCLAVE_SLURM_GRES": "1"}, []),
    ],
)
def test_lists_of_gpus_are_read_or_refused(tmp_path, words, found):
    assert gpus(tmp_path / "none", **words) == found


@pytest.mark.parametrize(
    ("minors", "numbering", "found"),
    [
        ((0, 1), "auto", [SECOND]),
        ((1, 0), "auto", None),
        ((1, 0), "pci", [SECOND]),
        ((1, 0), "minor", [FIRST]),
    ],
)
def test_a_number_that_could_be_two_gpus_is_refused(driver, minors, numbering, found):
    assert gpus(driver(*minors), SLURM_JOB_GPUS="1", AUTOCLAVE_SLURM_NUMBERING=numbering) == found


def test_a_restricted_job_counts_its_visible_gpus_from_zero(tmp_path, slurmd):
    """With ConstrainDevices=yes a job sees CUDA_VISIBLE_DEVICES so, the prolog does not."""
    words = {"SLURM_JOB_GPUS": "1,3", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert gpus(tmp_path / "none", **words) == ["1", "3"]
    assert gpus(tmp_path / "none", **words | {"CUDA_VISIBLE_DEVICES": "0"}) is None
    assert gpus(tmp_path / "none", **words | {"CUDA_VISIBLE_DEVICES": "1,0"}) is None
    assert "differ" in ended(slurmd.run("prolog.sh", 52, **words), 2)


def test_a_gpu_left_out_of_gres_moves_the_numbers(driver):
    """The place in gres.conf is the number of Slurm: /dev/nvidia1 is its GPU 0 if /dev/nvidia0 is left out."""
    assert gpus(driver(0, 1), SLURM_JOB_GPUS="0", AUTOCLAVE_SLURM_GRES="1") == [SECOND]
    assert gpus(driver(0, 1), SLURM_JOB_GPUS="1", AUTOCLAVE_SLURM_GRES="1") is None


def test_the_index_of_a_slice_or_missing_gpu_is_refused(driver):
    place = driver(0, 1)
    assert gpus(place, SLURM_JOB_GPUS="2") is None
    (place / "capabilities" / "gpu0" / "mig" / "gi1").mkdir(parents=True)
    assert gpus(place, SLURM_JOB_GPUS="1") is None
    assert gpus(place, SLURM_JOB_GPUS="1", CUDA_VISIBLE_DEVICES="MIG-7") == ["MIG-7"]
