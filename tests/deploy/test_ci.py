"""The scripts for CI runners, on the real service. Runner, agent, sudo and docker are stand-ins."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoclave.cli import service_call
from scrubber.devices.simulated import drills
from tests.control_groups import identity
from tests.deploy.jobs import JobService, installed, lives, program

ROOT = Path(__file__).parents[2]
CI = ROOT / "deploy" / "ci"
ME = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
SECRET = b"weights of the last job"
CONTAINER = f"{os.getpid() + 1:064x}"  # of this test run alone: the marks of processes count on the whole machine


@pytest.fixture(scope="module")
def service():
    service = JobService("ci", 7)
    yield service
    service.stop()


@pytest.fixture(scope="module")
def unused() -> Iterator[int]:
    return iter(range(7))


class Runner:
    """A runner with one GPU, as sudoers allows it."""

    def __init__(self, service: JobService, gpu: int, root: Path) -> None:
        self.gpu, self.root = gpu, root
        self.programs = root / "programs"
        self.programs.mkdir()
        self.script = installed(CI / "gpu-job.sh", root / "gpu-job.sh", self.programs)
        program(self.programs / "autoclave", f'exec {sys.executable} -P -m autoclave "$@"')
        allowed = f"begin {ME} {gpu}|end {ME}"
        program(  # sudo keeps nothing of the environment
            self.programs / "sudo",
            '[ "$1" = -n ] && shift || exit 9\n'
            '[ "$1" = -l ] && shift && asked=1\n'
            '[ "$1" = /etc/autoclave/gpu-job.sh ] && shift || exit 9\n'
            f'case "$*" in {allowed.replace(" ", "?")}) ;; *) echo "sudo: a password is required" >&2; exit 1 ;; esac\n'
            '[ -n "${asked:-}" ] && exit\n'
            f'exec env -i PYTHONPATH={ROOT} AUTOCLAVE_RUN_DIR={service.run_dir} {self.script} "$@"',
        )
        self.environment = {
            "AUTOCLAVE_GPUS": str(gpu),
            "PYTHONPATH": str(ROOT), "AUTOCLAVE_RUN_DIR": str(service.run_dir),
        }  # fmt: skip

    def run(self, *command: object, **words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in command], env=self.environment | words, cwd=self.root, capture_output=True,
            text=True, check=False,
        )  # fmt: skip

    def job(self, *words: object) -> subprocess.CompletedProcess[str]:
        return self.run(self.script, *words)


@pytest.fixture
def runner(service, unused, tmp_path):
    gpu = next(unused)
    service.settled(gpu, "clean")
    return Runner(service, gpu, tmp_path)


def github(runner, hook, **words):
    """The runner starts the file with a shell, and any other code than 0 fails the job."""
    script = installed(CI / f"{hook}.sh", runner.root / f"{hook}.sh", runner.programs)
    return runner.run("bash", "--noprofile", "--norc", "-e", "-o", "pipefail", script, **words)


def buildkite(runner, hook, **words):
    """The agent sources the hook in a script of its own, which then writes down the environment."""
    name = {"started": "environment", "completed": "pre-exit"}[hook]
    installed(CI / f"{hook}.sh", runner.root / name, runner.programs)
    wrapper = runner.root / "wrapper"
    program(wrapper, f". {runner.root / name}\nstatus=$?\nenv >{runner.root}/after\nexit $status")
    run = runner.run(wrapper, **words)
    assert (runner.root / "after").exists(), "the agent reads what the hook has set"
    return run


@pytest.mark.parametrize("farm", [github, buildkite])
def test_a_dead_job_leaves_nothing_to_the_next_one(service, runner, farm):
    assert farm(runner, "started").returncode == 0
    assert service.settled(runner.gpu, "granted").owner == ME
    left = drills.zombie(
        service.simulated_dir, service.uuid(runner.gpu), SECRET
    )  # its job is killed, and no hook follows
    service.settled(runner.gpu, "in_use")
    assert SECRET in service.memory(runner.gpu)
    again = farm(runner, "started")
    assert again.returncode == 0, again.stderr
    assert service.memory(runner.gpu).strip(b"\0") == b""
    assert service.settled(runner.gpu, "granted").receipt.last_owner == ME
    assert not lives(left)
    assert farm(runner, "completed").returncode == 0
    service.settled(runner.gpu, "clean")
    other = farm(runner, "started", AUTOCLAVE_GPUS="0 1 2 3")
    assert other.returncode != 0, "a job must not choose other GPUs"
    assert "AUTOCLAVE_GPUS must be the GPUs that sudoers names" in other.stderr
    assert len(other.stderr.splitlines()) == 2
    assert service.settled(runner.gpu, "clean").owner == ""


def test_a_container_that_a_job_left_fails_the_next_job(service, runner):
    assert github(runner, "started").returncode == 0
    drills.occupy(service.simulated_dir, service.uuid(runner.gpu), SECRET, CONTAINER)
    service.settled(runner.gpu, "in_use")
    for hook in ("completed", "started"):
        refused = github(runner, hook)
        assert refused.returncode == 1
        assert "are not given back, for the reason above" in refused.stderr
    assert drills.release(service.simulated_dir, service.uuid(runner.gpu))
    assert github(runner, "started").returncode == 0
    assert github(runner, "completed").returncode == 0


def granted_to(service, gpu):
    """The control group that the GPU was last handed out to."""
    history = service_call.ask(service.run_dir, lambda admin: admin.history(str(gpu), kinds=["granted"], limit=1))
    return json.loads(history[-1].body)["grant"]["group"]


def test_a_job_has_its_gpu_for_its_runners_group(service, runner, group: Path):
    runner.script.write_text(runner.script.read_text().replace("\nGROUP= ", f"\nGROUP={group} "))
    assert github(runner, "started").returncode == 0
    assert granted_to(service, runner.gpu) == identity(group)


def test_a_container_of_docker_gets_a_slice_of_its_own(service, runner, group: Path):
    """As systemd makes slices: at the root of the groups."""
    program(runner.programs / "docker", f'printf "%s\\n" "$@" >{runner.root}/asked')
    program(runner.programs / "systemctl", f'[ "$1" = start ] && mkdir "{group}/$2"')
    runner.script.write_text(runner.script.read_text().replace("/sys/fs/cgroup/", f"{group}/"))
    assert runner.job("run", "nightly", runner.gpu, "--", "image").returncode == 0
    slice_ = f"autoclave_{runner.gpu}.slice"
    assert (runner.root / "asked").read_text().split()[2] == f"--cgroup-parent={slice_}"
    assert granted_to(service, runner.gpu) == identity(group / slice_)


def test_docker_gets_proven_gpus_and_gives_them_back(service, runner):
    program(
        runner.programs / "docker", f'printf "%s\\n" "$@" >{runner.root}/asked\nautoclave status -o json >&2\nexit 7'
    )
    run = runner.job("run", "nightly", runner.gpu, "--", "image", "--", "pytest")
    assert run.returncode == 7
    assert '"state": "granted"' in run.stderr
    asked = (runner.root / "asked").read_text().split("\n")
    assert asked[:4] == ["run", "--rm", "--gpus", f'"device={runner.gpu}"']
    assert asked[4:] == ["image", "--", "pytest", ""]
    assert service.settled(runner.gpu, "clean").receipt.last_owner == "nightly"
    service_call.ask(service.run_dir, lambda admin: admin.quarantine(str(runner.gpu), "smells", "somebody"))
    (runner.root / "asked").unlink()
    refused = runner.job("run", "nightly", runner.gpu, "--", "image")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 2), refused.stderr
    assert not (runner.root / "asked").exists(), "no container starts without a proof"


def test_without_the_service_a_job_gets_no_gpu(service, tmp_path):
    runner = Runner(service, 0, tmp_path)
    nowhere = {"AUTOCLAVE_RUN_DIR": str(tmp_path / "none"), "AUTOCLAVE_SERVICE_WAIT": "0s"}
    run = runner.run(runner.script, "begin", "box", runner.gpu, **nowhere)
    assert run.returncode == 3
    assert run.stderr.endswith(f"autoclave: the job gets no GPU of {runner.gpu}, for the reason above\n")
    (runner.programs / "autoclave").unlink()
    run = runner.job("begin", "box", runner.gpu)
    assert run.returncode == 1
    assert run.stderr.startswith(f"autoclave: there is no autoclave in {runner.programs}:")
    assert run.stderr.endswith(f": add its directory to the line PATH of {runner.script}\n")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "the first word must be begin, end or run, not ''"),
        (["steal", "me", "0"], "the first word must be begin, end or run, not 'steal'"),
        (["begin", "", "0"], "OWNER is missing or empty"),
        (["end"], "OWNER is missing or empty"),
        (["begin", "me"], "GPU is missing: name at least one"),
        (["run", "me", "--", "image"], "GPU is missing: name at least one"),
        (["end", "me", "0"], "only OWNER may follow end"),
        (["run", "box", "0", "1", "--"], "IMAGE is missing: name it after --"),
        (["run", "me", "0-1", "--", "image"], "name each GPU: docker takes no '0-1'"),
        (["run", "me", "0", "image"], "IMAGE is missing: name it after --"),
        (["begin", "me", "--help"], "OWNER and GPU must be names, not '--help'"),
        (["end", "--help"], "OWNER and GPU must be names, not '--help'"),
        (["begin", "me", "0", "--quiet"], "OWNER and GPU must be names, not '--quiet'"),
        (["run", "me", "--help", "--", "image"], "OWNER and GPU must be names, not '--help'"),
    ],
)
def test_wrong_words_are_refused(words, why):
    run = subprocess.run([CI / "gpu-job.sh", *words], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    refusal, usage = run.stderr.splitlines()
    assert (refusal, "usage: " in usage) == (f"autoclave: {why}", True)
    helped = subprocess.run([CI / "gpu-job.sh", "--help"], capture_output=True, text=True, check=True)
    assert helped.stdout == usage.removeprefix("autoclave: ") + "\n"


HOOKS = {
    "ci/gpu-job.sh": ["begin", ME, "0"],
    "ci/started.sh": [],
    "ci/completed.sh": [],
    "slurm/autoclave.sh": ["prolog"],
    "examples/node-problem-detector.sh": ["--host"],
}
OURS = {"push_image.sh", "link-driver.sh"}  # for the one who builds, and in a container of our own


def test_no_hook_of_a_node_is_left_out():
    scripts = {path.relative_to(CI.parent) for path in CI.parent.rglob("*.sh")}
    assert {str(path) for path in scripts if path.name not in OURS} == HOOKS.keys()


@pytest.mark.parametrize("hook", HOOKS)
def test_no_hook_runs_a_program_of_its_caller(tmp_path, hook):
    """A hook runs as root, or its success starts the job. The caller's own programs say yes to everything."""
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    text = (CI.parent / hook).read_text()
    for name in {*re.findall(r"[a-z][a-z-]+", text)} - {"exec", "export", "set", "command", "printf", "echo"}:
        program(foreign / name, f'echo "{name} $*" >>{tmp_path}/ran\nexit 0')
    words = {"PATH": str(foreign), "SLURM_JOB_ID": "1", "SLURM_JOB_GPUS": "0", "AUTOCLAVE_SLURM_DRAIN": "no"}
    run = subprocess.run([CI.parent / hook, *HOOKS[hook]], env=words, cwd=tmp_path, capture_output=True, check=False)
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
    assert run.returncode != 0, "nothing was acquired here"


def test_buildkite_keeps_the_search_path_of_its_agent(runner):
    buildkite(runner, "started", PATH="/bin:/usr/bin:/somewhere")
    buildkite(runner, "completed", PATH="/bin:/usr/bin:/somewhere")
    assert "PATH=/bin:/usr/bin:/somewhere\n" in (runner.root / "after").read_text()
