"""``autoclave remnant run`` on the stand-in for the driver, which clears what it is told to clear."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autoclave.cli.verbs import remnant
from containers import commands as container_commands
from containers.container import Container
from ground.errors import FatalError
from remnant import judge, launchers, result_files, rounds, tenant
from remnant.judge import Verdict
from remnant.launchers import Launcher
from remnant.round_result import Ending, GpuAndDriver, Medium, Planted, Result, Round
from remnant.rounds import Subject
from remnant.tenant import ContainerOrder
from scrubber.cuda import cuda_card
from tests.cli.on_machine import FLAGS, needs_namespace
from tests.fakes.cuda.fixtures import in_this_process, libraries
from tests.fakes.cuda.machine import PAGE, CudaMachine, equip
from tests.fakes.nvml.fixtures import Stage, nvml_build, stage
from tests.fakes.nvml.machine import Process
from tests.gpu.rehearsing import ROOT, environment
from tests.patience import WITHIN

__all__ = ["nvml_build", "stage"]  # fixtures
pytestmark = needs_namespace

SIZE = 12 * PAGE
KEY = "0" * 32
ALL = {0: SIZE}  # of the memory
# Registers of the stand-in are new in each launch.
CHOSEN = ("--medium", "memory", "--medium", "host-memory", "--medium", "shared-memory")


@dataclass(frozen=True)
class Bench:
    """A GPU of the stand-in, and the command."""

    stage: Stage
    cuda: CudaMachine
    to: Path

    @property
    def uuid(self) -> str:
        return self.stage.machine.gpu(0).uuid

    def command(self, *more: str) -> list[str]:
        flags = ["--gpu", self.uuid, "--to", str(self.to), "--host-root", str(self.stage.root.path)]
        return ["unshare", *FLAGS, sys.executable, "-m", "autoclave", "remnant", "run", *flags, *more]

    @property
    def variables(self) -> dict[str, str]:
        return environment(self.stage, self.cuda.environment(self.stage.library.parent))

    def run(self, *more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*more), cwd=ROOT, env=self.variables, capture_output=True, text=True, check=False
        )

    def cells(self) -> dict[tuple[str, str], dict[str, Any]]:
        """What was found, by ending and medium."""
        found = json.loads((self.to / "result.json").read_text())["cells"]
        return {(it["ending"], it["medium"]): it for it in found}


@pytest.fixture
def bench(stage, tmp_path) -> Bench:
    return Bench(stage, equip(tmp_path / "cuda", [stage.machine.gpu(0)], libraries(), SIZE), tmp_path / "out")


def test_a_driver_that_clears_leaves_no_word(bench) -> None:
    bench.cuda.change(bench.uuid, clears=ALL)
    run = bench.run(*CHOSEN, "--rounds", "1")
    assert run.returncode == 0, run.stderr
    found = bench.cells()
    assert {key: it["verdict"] for key, it in found.items()} == {
        **{(how, medium): "no remnant" for how in ("exit", "kill", "abort", "stays") for medium in CHOSEN[1::2]},
        ("stays", "memory"): "held",
    }
    assert all(it["as_expected"] for it in found.values())
    assert found["kill", "memory"]["searched"] == found["kill", "memory"]["read"] > SIZE // 2
    page = (bench.to / "report.md").read_text()
    assert "| it is killed (SIGKILL) | memory | no remnant | no remnant | 1 |" in page
    assert page.count("; filled through cuMemCreate: 10 MiB |") == 3
    assert bench.uuid not in page + (bench.to / "result.json").read_text() + run.stdout
    assert (bench.to / "report.svg").read_text().count("<rect") == 12
    assert "round 4 of 4: stays, about" in run.stderr
    said = json.loads((bench.to / "statement.json").read_text())["predicate"]
    assert (said["result"], said["warnedTests"], len(said["passedTests"])) == ("WARNED", ["memory after stays"], 11)


@pytest.mark.parametrize(
    "hole", [{0: 0}, {0: 6 * PAGE, 6 * PAGE + 4096: SIZE}], ids=["clears nothing", "leaves a page"]
)
def test_what_a_driver_leaves_is_found_to_the_byte(bench, hole) -> None:
    bench.cuda.change(bench.uuid, clears=hole)
    run = bench.run(*CHOSEN, "--rounds", "1", "--ending", "kill")
    assert run.returncode == 1, run.stderr
    found = bench.cells()["kill", "memory"]
    assert (found["verdict"], found["as_expected"]) == ("remnant", False)
    assert found["recognised"] == found["not_zero"] == (found["read"] if hole == {0: 0} else 4096)
    assert not any(bench.cuda.memory(bench.uuid).read_bytes()[2 * PAGE :])  # zeros are left, beside the context
    said = json.loads((bench.to / "statement.json").read_text())
    assert (said["predicate"]["result"], said["predicate"]["failedTests"]) == ("FAILED", ["memory after kill"])
    [subject] = said["subject"]
    assert subject["digest"]["sha256"] == hashlib.sha256((bench.to / "result.json").read_bytes()).hexdigest()


def test_what_is_cleared_only_after_the_first_look_counts(bench) -> None:
    """No word is left to be searched for, but what the first look saw was not zero."""
    bench.cuda.change(bench.uuid, clears_late=1)
    run = bench.run("--medium", "memory", "--rounds", "1", "--ending", "kill")
    found = bench.cells()["kill", "memory"]
    assert (found["verdict"], found["recognised"]) == ("not zero", 0), run.stderr
    assert found["not_zero"] == found["read"] > found["searched"]


@pytest.mark.parametrize(
    ("changes", "pages"),
    [
        ({}, 5),
        ({"attribute.102": "0"}, 0),
        ({"fail.cuMemAddressReserve": "1"}, 0),
        ({"fails_at": "allocate 6", "fails_with": "2"}, 4),
        ({"fails_at": "allocate 6", "fails_with": "801"}, 1),
        ({"fail.cuMemMap": "1 2"}, 1),
        ({"fail.cuMemSetAccess": "1 3"}, 2),
    ],
    ids=["all", "unknown", "no addresses", "out of memory", "not supported", "not mapped", "no access"],
)
def test_all_memory_is_filled_whatever_can_be_mapped(bench, changes, pages) -> None:
    bench.cuda.change(bench.uuid, **changes)
    pci, root = bench.stage.machine.gpu(0).pci, str(bench.stage.root.path)
    order = ContainerOrder("fill", bench.uuid, pci, root, "0" * 32, "1" * 32, ("memory",))
    with in_this_process(bench.cuda):
        answer, _ = tenant.fill(order, cuda_card.driver_of(bench.uuid))
    assert answer.planted["memory"] == Planted(10 * PAGE, 10 * PAGE, pages * PAGE)
    taken = bench.cuda.memory(bench.uuid).read_bytes()[2 * PAGE :]  # beside the context and its page of results
    assert taken == tenant.words(order.key) * (10 * PAGE // 16)


@pytest.mark.parametrize("hole", [{0: 0}, {0: PAGE, PAGE + 4096: PAGE}], ids=["clears nothing", "leaves a page"])
def test_pinned_memory_that_is_left_is_found_to_the_byte(bench, tmp_path, hole) -> None:
    bench.cuda.change(bench.uuid, clears=ALL, pinned=tmp_path / "pinned", pinned_clears=hole)
    run = bench.run("--medium", "host-memory", "--rounds", "1", "--ending", "kill")
    assert run.returncode == 1, run.stderr
    found = bench.cells()["kill", "host-memory"]
    assert (found["verdict"], found["as_expected"], found["read"]) == ("remnant", False, 2 * PAGE)
    assert found["recognised"] == found["not_zero"] == (found["read"] if hole == {0: 0} else 4096)
    assert (tmp_path / "pinned").read_bytes() == bytes(2 * PAGE)  # zeros are left
    assert "the next container may get other pages" in " ".join((bench.to / "report.md").read_text().split())


@pytest.mark.parametrize(("status", "written"), [(2, True), (801, False)])
def test_pinned_memory_that_is_refused_is_no_finding(bench, status, written) -> None:
    """Too little memory gives no answer, and another refusal ends the run."""
    bench.cuda.change(bench.uuid, clears=ALL)
    bench.cuda.fail(bench.uuid, "cuMemHostAlloc", status)
    run = bench.run("--medium", "host-memory", "--rounds", "1", "--ending", "kill")
    assert (run.returncode, bench.to.exists()) == (2, written), run.stderr
    assert ("no answer" if written else "cannot pin memory of the host for") in run.stdout + run.stderr


@pytest.mark.parametrize(("kept", "verdict"), [(True, "remnant"), (False, "no remnant")])
def test_shared_memory_that_a_driver_keeps_is_a_remnant(bench, tmp_path, kept, verdict) -> None:
    bench.cuda.change(bench.uuid, clears=ALL, shared=tmp_path / "shared" if kept else None)
    run = bench.run("--medium", "shared-memory", "--rounds", "1", "--ending", "kill")
    assert run.returncode == kept, run.stderr
    found = bench.cells()["kill", "shared-memory"]
    assert (found["verdict"], found["as_expected"]) == (verdict, not kept)
    assert found["recognised"] == (found["read"] if kept else 0)
    assert found["read"] > 0


def test_a_gpu_in_use_is_refused(bench) -> None:
    gpu = bench.stage.machine.gpu(0)
    gpu.run(Process(1))  # the first one in the namespace of the command
    run = bench.run()
    assert run.returncode == 2
    assert "cannot use GPU" in run.stderr
    assert not bench.to.exists()
    assert bench.cuda.memory(bench.uuid).read_bytes() == bytes(SIZE)


def test_wrong_input_is_one_sentence(bench) -> None:
    bench.to.mkdir()
    assert f"cannot write to {bench.to}: File exists" in bench.run().stderr
    run = subprocess.run(
        [*bench.command(), "--to", str(bench.to / "new"), "--gpu", "99"],
        cwd=ROOT,
        env=bench.variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr.count("\n")) == (2, 1)
    assert "there is no GPU 99: the driver lists" in run.stderr


def test_who_names_no_gpu_of_several_is_asked(bench) -> None:
    command = [*bench.command(), "--beside", "/bin/true"]
    place = command.index("--gpu")
    del command[place : place + 2]
    run = subprocess.run(command, cwd=ROOT, env=bench.variables, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (
        2,
        "autoclave: cannot use a GPU: this machine has 8 GPUs: name one with --gpu\n",
    )


def test_who_cannot_see_all_processes_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(FatalError, match="only root sees all processes"):
        remnant.run.main(["--gpu", "0"], standalone_mode=False)


ANSWERS = """
import json, sys
order = json.loads(sys.stdin.readline())
print('{"gpu": null}', flush=True)
sys.stdin.readline()
filled = {"available": 1, "planted": dict.fromkeys(order["media"], {"written": 1, "recognised": 1, "mapped": 0})}
print(json.dumps(filled if order["deed"] == "fill" else json.loads(sys.argv[1])), flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize(
    ("ending", "out_of_memory", "why"),
    [
        (Ending.EXIT, False, "no device"),
        (Ending.EXIT, True, ""),
        (Ending.ABORT, True, "no kernel of it trapped"),
        (Ending.KILL, True, "status 0: not killed"),
    ],
)
def test_only_a_shortage_of_memory_is_a_finding(ending, out_of_memory, why) -> None:
    """A refusal for another reason, or an abort that was none, says nothing about the memory."""
    refusal = json.dumps({"refused": "no device", "out_of_memory": out_of_memory})
    subject = Subject(Launcher(lambda _name: [sys.executable, "-c", ANSWERS, refusal]), "GPU")
    with pytest.raises(container_commands.ContainerFailed, match=why) if why else nullcontext():
        assert rounds.run_round(subject, ending)[0].refused == "no device"


ABOUT = {
    "uuid": "GPU-0aaaaaaa-0000-4000-8000-000000000000", "model": "H200", "driver": "580", "memory": 1, "ecc": True,
    "persistence": None, "open_modules": True,
}  # fmt: skip
ODD = {
    "a line without end": ("while True: sys.stdout.write('x' * 4096)", "said more than 65536 bytes, and no answer"),
    "a drip": ("while True: sys.stdout.write('.'), sys.stdout.flush(), time.sleep(0.01)", "gave no answer within 1 s"),
    "many lines": ("while True: print('x')", "answered 'x', which is not an answer of autoclave"),
    "complaints without end": ("while True: sys.stderr.write('x' * 4096)", "gave no answer within 1 s"),
    "a banner": ("print('== CUDA ==')", "answered '== CUDA ==', which is not an answer"),
    "deep JSON": ("print('[' * 50000)", "which is not an answer .* nested too deeply"),
    "another release": ("print(json.dumps({'gpu': None, 'ready': 1}))", "not an answer .* exactly the fields gpu"),
    "a large number": (
        f"print(json.dumps({{'gpu': {ABOUT | {'memory': 2**63}}}}))",
        "it contains a number that is not a valid size",
    ),
    "no UUID": (f"print(json.dumps({{'gpu': {ABOUT | {'uuid': 'GPU-' + chr(27) + '[2J'}}}}))", "its GPU has no UUID"),
    "no name": (f"print(json.dumps({{'gpu': {ABOUT | {'driver': chr(10)}}}}))", "its GPU has no printable name"),
    "bytes": ("sys.stdout.buffer.write(bytes(range(128, 256)) + b'\\n')", "which is not an answer"),
}


@pytest.mark.parametrize(("odd", "why"), ODD.values(), ids=ODD)
def test_a_foreign_container_ends_the_run_in_a_sentence(odd, why) -> None:
    program = f"import json, sys, time\n{odd}"
    launcher = Launcher(lambda _name: [sys.executable, "-c", program], starts_within=1)
    with pytest.raises(container_commands.ContainerFailed, match=why) as failed:
        rounds.run_round(Subject(launcher), Ending.EXIT)
    assert failed.value.message.isprintable()
    assert len(failed.value.message) < 500


@pytest.mark.parametrize("planted", [{}, {"memory": {"written": -1, "recognised": 0, "mapped": 0}}])
def test_sizes_and_media_are_those_that_were_asked_for(planted) -> None:
    filled = {"available": 1, "planted": planted}
    program = f"print('{{\"gpu\": null}}', flush=True)\nprint({json.dumps(filled)!r}, flush=True)\ninput()\ninput()"
    with pytest.raises(container_commands.ContainerFailed, match=r"not an answer .*other media|not a valid size"):
        rounds.run_round(Subject(Launcher(lambda _: [sys.executable, "-c", program])), Ending.EXIT, [Medium.MEMORY])


def test_a_container_may_complain_as_long_as_it_likes() -> None:
    """A pipe holds 64 KiB: before an answer, and before the end."""
    complains = "import atexit, sys\nsys.stderr.write('x' * 300000)\natexit.register(sys.stderr.write, 'y' * 300000)\n"
    refusal = json.dumps({"refused": "full", "out_of_memory": True})
    subject = Subject(Launcher(lambda _name: [sys.executable, "-c", complains + ANSWERS, refusal]), "GPU")
    assert rounds.run_round(subject, Ending.EXIT)[0].refused == "full"


def test_a_command_of_the_place_that_hangs_is_ended(monkeypatch) -> None:
    monkeypatch.setattr(container_commands, "COMMANDS_WITHIN", 0.5)
    monkeypatch.setattr(Container, "says_after", 0.1)

    def hangs(*_name: str) -> list[str]:
        return ["sleep", "1000"]

    launcher = Launcher(hangs, waits=hangs, remove=hangs, starts_within=0.5)
    with pytest.raises(
        container_commands.ContainerFailed,
        match=r"no answer within 0.5 s; and then `sleep 1000` did not end within 0.5 s",
    ):
        rounds.run_round(Subject(launcher), Ending.EXIT)


def test_the_first_error_is_said_before_that_of_clearing_away() -> None:
    def fails(why: str) -> list[str]:
        return ["sh", "-c", f"echo {why} >&2; exit 1"]

    launcher = Launcher(lambda _name: fails("no-cluster"), remove=lambda _name: fails("no-pod"))
    with pytest.raises(container_commands.ContainerFailed, match=r"no-cluster; and then .*no-pod"):
        rounds.run_round(Subject(launcher, "GPU"), Ending.EXIT)


def test_a_gpu_without_room_for_the_next_one_is_held(monkeypatch, bench) -> None:
    gpu = bench.stage.machine.gpu(0)
    for name, value in bench.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rounds, "LEFT_FREE", 1)
    one, _ = rounds.run_round(Subject(launchers.local(), gpu.uuid, gpu.pci, bench.stage.root.path), Ending.STAYS)
    assert f"{gpu.uuid}: CUDA says CUDA_ERROR_OUT_OF_MEMORY" in one.refused
    assert judge.cell(Medium.MEMORY, [one]).verdict is Verdict.HELD
    bench.to.mkdir()
    about = GpuAndDriver(gpu.uuid, "H200", "580", SIZE, ecc=True, persistence=None)
    for file in result_files.write(bench.to, Result("local", "now", about, (one,), 1)):
        assert gpu.uuid not in file.read_text(), file


def test_a_report_keeps_no_markup_of_others(tmp_path) -> None:
    foreign = "<script>alert(1)</script> ![x](https://example.com/) | `x`"
    one = Round(Ending.EXIT, 1.0, 1, {Medium.MEMORY: Planted(1, 1)}, refused=foreign)
    about = GpuAndDriver("GPU-1", foreign, foreign, 1, ecc=True, persistence=None)
    result_files.write(tmp_path, Result("local", "now", about, (one,), 1, (foreign,)))
    page = (tmp_path / "report.md").read_text()
    assert page.count("alert") == 5
    assert "<script" not in page
    assert page.count("![x]") == page.count(" | `x`") == 0


@pytest.mark.parametrize(
    ("number", "hole", "code"), [(signal.SIGINT, ALL, 130), (signal.SIGTERM, ALL, 130), (signal.SIGHUP, {0: 0}, 1)]
)
def test_an_interruption_keeps_what_was_done(bench, number, hole, code) -> None:
    """And hides no finding."""
    bench.cuda.change(bench.uuid, clears=hole)
    with subprocess.Popen(
        [*bench.command(*CHOSEN, "--ending", "exit")], cwd=ROOT, env=bench.variables, stderr=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as run:  # fmt: skip
        assert run.stderr is not None
        while "round 2 of 20" not in run.stderr.readline():
            pass
        [child] = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        os.kill(int(child), number)
        run.communicate()
    assert run.returncode == code
    result = json.loads((bench.to / "result.json").read_text())
    assert (len(result["rounds"]), result["ended_early"]) == (1, "it was interrupted")
    said = json.loads((bench.to / "statement.json").read_text())["predicate"]
    assert said["failedTests"][-1] == "all rounds are done"


@pytest.mark.parametrize(("lines", "written"), [(0, False), (2, True)])
def test_who_stops_reading_gets_no_false_finding(bench, lines, written) -> None:
    """Before the first line, or in the first round."""
    bench.cuda.change(bench.uuid, clears=ALL)
    read, write = os.pipe()
    with os.fdopen(read) as reader:
        if not lines:
            reader.close()
        command = bench.command(*CHOSEN, "--ending", "exit")
        with subprocess.Popen(command, cwd=ROOT, env=bench.variables, stdout=write, stderr=write) as run:
            os.close(write)
            if lines:
                while "round 1" not in reader.readline():
                    pass
                reader.close()
    assert (run.returncode, bench.to.exists()) == (130, written)


@pytest.fixture
def commands(bench, tmp_path) -> Path:
    """The commands of the places where containers run; the directory with what they have started."""
    programs, given = Path(tmp_path / "programs"), Path(tmp_path / "given")
    programs.mkdir()
    given.mkdir()
    (given / "gpus").write_text(bench.uuid)
    for name in ("docker", "kubectl", "srun", "scancel"):
        script = f'#!/bin/sh\nexec {sys.executable} -m tests.remnant.stand_ins {name} "$@"\n'
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    return given


def ended(process: int) -> None:
    """Wait until this process has ended."""
    assert select.select([process], [], [], WITHIN)[0]
    os.close(process)


def running(bench, commands, *flags: str, before: Sequence[str] = ()) -> subprocess.Popen[str]:
    """The command where these are on the search path."""
    programs = commands.with_name("programs")
    own = {"GIVEN": str(commands), "HOST_ROOT": str(bench.stage.root.path)}
    variables = bench.variables | own | {"PATH": f"{programs}:{bench.variables['PATH']}"}
    command = [*before, sys.executable, "-m", "autoclave", "remnant", "run", "--to", str(bench.to), *flags]
    return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def elsewhere(bench, commands, *flags: str) -> subprocess.CompletedProcess[str]:
    """The same in a namespace of its own, until it ends."""
    with running(bench, commands, *flags, before=["unshare", *FLAGS]) as run:
        out, said = run.communicate()
    return subprocess.CompletedProcess(run.args, run.returncode, out, said)


PLACES = {
    "docker": (["--image", "ours", "--gpu"], {"exit", "kill", "abort", "stays"}),
    "kubernetes": (["--image", "ours", "--namespace", "tests"], {"exit", "kill", "delete", "force-delete", "abort"}),
    "slurm": (["--node", "here"], {"exit", "kill", "abort"}),
}


@pytest.mark.parametrize(
    ("hole", "place"),
    [
        pytest.param(hole, place, id=f"{'clears' if hole == ALL else 'clears nothing'}-{place}", marks=marks)
        for hole, marks in ((ALL, pytest.mark.night), ({0: 0}, ()))
        for place in PLACES
    ],
)
def test_what_is_left_is_found_wherever_containers_run(bench, commands, place, hole) -> None:
    bench.cuda.change(bench.uuid, clears=hole)
    flags, endings = PLACES[place]
    own = [bench.uuid, "--host-root", str(bench.stage.root.path)] if place == "docker" else []
    run = elsewhere(bench, commands, "--on", place, *flags, *own, "--medium", "memory", "--rounds", "1")
    assert run.returncode == (0 if hole == ALL else 1), run.stderr
    wiped = {how: "held" if how == "stays" else "no remnant" for how in endings}
    found = {ending: cell["verdict"] for (ending, _), cell in bench.cells().items()}
    assert found == (wiped if hole == ALL else dict.fromkeys(endings, "remnant"))
    result = json.loads((bench.to / "result.json").read_text())
    assert (result["on"], result["gpu"]["uuid"], result["gpu"]["model"]) == (place, bench.uuid[:8], "NVIDIA H200")
    assert {path.name for path in commands.iterdir()} == {"gpus"}, "a container is left"


def test_a_foreign_container_loses_no_round(bench, commands) -> None:
    bench.cuda.change(bench.uuid, clears=ALL)
    (commands / "banner").write_text("2")
    run = elsewhere(bench, commands, "--on", "slurm", "--medium", "memory", "--ending", "exit")
    assert (run.returncode, run.stderr.count("\n")) == (2, 3), run.stderr
    assert "a container answered '== CUDA ==', which is not an answer" in run.stderr.splitlines()[-1]
    result = json.loads((bench.to / "result.json").read_text())
    assert (len(result["rounds"]), result["ended_early"]) == (1, "a container failed")


@pytest.mark.parametrize("right", ["create pods/attach", "delete pods", "get pods/log"])
def test_no_pod_is_made_that_could_not_be_removed(bench, commands, right) -> None:
    (commands / "denied").write_text(right)
    flags = ("--medium", "memory", "--ending", "exit", "--rounds", "1")
    run = elsewhere(bench, commands, "--on", "kubernetes", "--image", "ours", *flags)
    assert (run.returncode, run.stderr.count("\n")) == (2, 1), run.stderr
    assert f"cannot start pods: this account may not {right}: " in run.stderr
    assert not bench.to.exists()
    assert {path.name for path in commands.iterdir()} == {"gpus", "denied"}


def test_a_killed_command_leaves_no_pod(bench, commands) -> None:
    os.mkfifo(commands / "begun")
    with running(bench, commands, "--on", "kubernetes", "--image", "ours") as run:
        kubectl = os.pidfd_open(int((commands / "begun").read_text()))
        run.kill()
    ended(kubectl)
    assert {path.name for path in commands.iterdir()} == {"gpus", "begun"}


def test_a_command_of_the_place_outlives_this_one(tmp_path) -> None:
    """It can clear away, although it writes to a pipe that nobody reads."""
    os.mkfifo(tmp_path / "begun")
    place = f"echo $$ >{tmp_path}/begun; while read line; do :; done; echo answer; touch {tmp_path}/cleared"
    program = f"""
from remnant import launchers, rounds
launcher = launchers.Launcher(lambda _name: ["sh", "-c", {place!r}])
rounds.run_round(rounds.Subject(launcher), rounds.Ending.EXIT)
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) as run:
        shell = os.pidfd_open(int((tmp_path / "begun").read_text()))
        run.kill()
    ended(shell)
    assert (tmp_path / "cleared").exists()


def test_a_container_without_its_command_does_nothing(bench) -> None:
    order = ContainerOrder("fill", bench.uuid, bench.stage.machine.gpu(0).pci, str(bench.stage.root.path), KEY, KEY)
    command = [sys.executable, *launchers.PROGRAM]
    said = subprocess.run(
        command, cwd=ROOT, env=bench.variables, input=json.dumps(dataclasses.asdict(order)) + "\n",
        stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    assert said == '{"gpu": null}\n'
    assert bench.cuda.memory(bench.uuid).read_bytes() == bytes(SIZE)


def test_a_round_counts_only_on_one_gpu(bench, commands) -> None:
    """The scheduler gives the second container another one, the first time."""
    other = bench.stage.machine.gpu(1)
    equip(commands.with_name("other"), [other], libraries(), SIZE)
    bench.cuda.change(bench.uuid, clears=ALL)
    (commands / "gpus").write_text(f"{bench.uuid} {other.uuid} {bench.uuid}")
    run = elsewhere(bench, commands, "--on", "slurm", "--medium", "memory", "--rounds", "1", "--ending", "exit")
    assert (run.returncode, run.stderr.count("again: ")) == (0, 1), run.stderr
    assert bench.cells()["exit", "memory"]["rounds"] == 1


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--on", "kubernetes"], "--on kubernetes needs --image"),
        (["--on", "slurm", "--image", "a"], "--image has no effect with --on slurm"),
        (["--on", "kubernetes", "--image", "a", "--gpu", "0"], "its scheduler chooses the GPU"),
        (["--on", "docker", "--image", "a", "--ending", "delete"], "choose one of exit, kill, abort, stays"),
        (["--runtime-class", "nvidia"], "--runtime-class has no effect with --on local"),
    ],
)
def test_a_flag_that_says_nothing_is_refused(bench, commands, flags, why) -> None:
    run = elsewhere(bench, commands, *flags)
    assert (run.returncode, why in run.stderr, bench.to.exists()) == (2, True, False), run.stderr


def test_a_checkout_that_is_not_installed_runs_its_containers() -> None:
    command = launchers.local().start("")
    python = command.index(sys.executable)
    subprocess.run([*command[: python + 1], "-S", "-P", "-c", "import remnant"], check=True, cwd="/")
