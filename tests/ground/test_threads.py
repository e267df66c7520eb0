"""Where too many processes run, each program says so. gRPC would end it with a signal and without a word."""

import os
import shutil
import subprocess
import sys

import pytest

from ground import threads
from scrub_api import client
from tests.patience import WITHIN

ANOTHER = 54321  # root has no limit of its own
CAPABILITIES = "+dac_override,+dac_read_search"  # Python may be in a directory of root


def limited(processes):
    """A command in front of another, whose user may have so many processes."""
    limit = ["prlimit", f"--nproc={processes}"]
    if os.geteuid() != 0:
        return limit
    user = [f"--reuid={ANOTHER}", f"--regid={ANOTHER}", "--clear-groups"]
    return ["setpriv", *user, "--inh-caps", CAPABILITIES, "--ambient-caps", CAPABILITIES, *limit]


@pytest.mark.skipif(not all(map(shutil.which, ("setpriv", "prlimit"))), reason="needs setpriv and prlimit")
@pytest.mark.parametrize(
    ("verb", "code", "beginning"),
    [
        ("status", 3, "cannot reach the scrub service at {}/run/admin.sock"),
        ("acquire 0", 3, "cannot reach the scrub service at {}/run/"),
        ("plugin --kubelet-dir {}", 2, "cannot start"),
        ("scrubber --backend simulated --state-dir {}/state --simulated-dir {}/gpus", 2, "cannot start"),
    ],
)
def test_without_processes_a_program_ends_with_a_sentence(short_tmp, verb, code, beginning):
    short_tmp.chmod(0o777)
    words = ["--service-wait", "0s", *verb.replace("{}", str(short_tmp)).split(), "--run-dir", str(short_tmp / "run")]
    command = [*limited(4), sys.executable, "-m", "autoclave", *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WITHIN)
    assert ended.returncode == code
    assert ended.stderr.startswith(f"autoclave: {beginning.format(short_tmp)}")
    assert "because too many processes run; end processes, or raise the limit" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_with_processes_left_there_is_no_shortage():
    assert threads.shortage() == ()


async def test_a_running_plugin_does_not_ask_again(short_tmp, monkeypatch):
    monkeypatch.setattr(threads, "shortage", lambda: ("too few",))
    async with client.ScrubberClient(short_tmp / "scrubber.sock"):
        pass
