"""``autoclave access`` with podman itself, where it is: the kernel and a real runtime decide, and no stand-in.

/dev/fuse stands for a GPU: to open it does nothing. The image is made of this machine's Python.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.python_image import PYTHON, write_files

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.night,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("podman") is None, reason="takes podman, as root"),
    pytest.mark.skipif(not Path("/dev/fuse").exists() or not PYTHON.exists(), reason="takes /dev/fuse and a Python"),
]


@pytest.fixture
def image(tmp_path, monkeypatch):
    runtime = "runc" if shutil.which("runc") else "crun"
    (tmp_path / "conf").write_text(
        '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\nnetns = "none"\n'
        f'[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "{runtime}"\n'
    )
    (tmp_path / "storage").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{tmp_path}/store"\nrunroot = "{tmp_path}/run"\n'
    )
    monkeypatch.setenv("CONTAINERS_CONF", str(tmp_path / "conf"))
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(tmp_path / "storage"))
    write_files(tmp_path / "rootfs.tar")
    subprocess.run(["podman", "import", "--quiet", tmp_path / "rootfs.tar", "localhost/probe:1"], check=True)
    try_it = ["podman", "run", "--rm", "--entrypoint=python3", "localhost/probe:1", "-c", "pass"]
    tried = subprocess.run(try_it, capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"podman starts no container here: {tried.stderr.strip()}")
    return "localhost/probe:1"


def test_podman_keeps_out_who_has_no_rights(image, tmp_path):
    command = [sys.executable, "-m", "autoclave", "access", "run", "--on", "podman", "--image", image]
    command += ["--gpu", "/dev/fuse", "--nodes", "/dev/fus[e]", "--to", str(tmp_path / "out")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stderr
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    verdicts = {way["way"]: way["verdict"] for way in found["ways"] if way["verdict"] in ("pass", "fail")}
    assert verdicts == {
        **dict.fromkeys(("no-request", "variable", "host-dev", "own-node", "host-pid"), "pass"),
        **dict.fromkeys(("privileged", "privileged-own-node", "handed-on"), "fail"),
    }
    left = subprocess.run(["podman", "ps", "--all", "--quiet"], check=True, stdout=subprocess.PIPE, text=True)
    assert left.stdout == ""
