"""The unit for machines without Kubernetes: what systemd itself says of it, and whether its few rights are enough."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autoclave.cli import WRONG_USAGE
from ground import paths
from scrubber.devices.simulated import layout, loops
from tests import few_rights

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "systemd" / "autoclave-scrubber.service"
PAGE = ROOT / "docs" / "without-kubernetes.md"


def read():
    lines = UNIT.read_text().split("[Service]")[1].split("[Install]")[0].splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def capabilities():
    return read()["CapabilityBoundingSet"].split()


def test_systemd_accepts_the_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / UNIT.name
    program = f"ExecStart={sys.executable} "  # the one that is told is not installed here
    unit.write_text(UNIT.read_text().replace("ExecStart=/opt/autoclave/bin/autoclave ", program))
    assert program in unit.read_text()
    verify = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit]
    run = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout + run.stderr) == (0, "")


def test_the_directories_of_the_unit_are_private():
    unit = read()
    assert Path("/run", unit["RuntimeDirectory"]) == Path(paths.RUN_DIR)
    assert Path("/var/lib", unit["StateDirectory"]) == Path(paths.STATE_DIR)
    assert unit["RuntimeDirectoryPreserve"] == "yes"  # the head of the ledger in it must survive a restart
    assert (unit["RuntimeDirectoryMode"], unit["StateDirectoryMode"], unit["UMask"]) == ("0700", "0700", "0077")


def test_systemd_restarts_after_all_failures_but_wrong_settings():
    """A driver may be loaded later: that exit code is another one (tests/cli/test_live.py)."""
    assert (read()["Restart"], read()["RestartPreventExitStatus"]) == ("on-failure", str(WRONG_USAGE))


def test_every_right_of_the_unit_has_its_reason():
    text = UNIT.read_text()
    for name in capabilities():
        assert name.removeprefix("CAP_") in text.split("CapabilityBoundingSet=")[0]
        assert f"`{name}`" in PAGE.read_text()


MAKES = """
import sys
from pathlib import Path
from scrubber.devices.simulated import layout
gpus = Path(sys.argv[1])
layout.create(gpus, 1, 2**20)
print(layout.make_nodes(gpus))
"""


def test_the_page_gives_the_unit_what_simulated_gpus_need(tmp_path):
    if not loops.can_attach(2**20):
        pytest.skip("takes root, and loop devices")
    added = re.findall("CapabilityBoundingSet=(.*?)\\\\n", PAGE.read_text())
    rights = frozenset(name.removeprefix("CAP_") for name in [*capabilities(), *added])
    command = [*few_rights.prefix(rights), sys.executable, "-c", MAKES, tmp_path / "gpus"]
    try:
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "\n"
        assert all(place.memory.is_block_device() for place in layout.places(tmp_path / "gpus"))
    finally:
        for place in layout.places(tmp_path / "gpus"):
            layout.remove_node(place)


def test_the_unit_has_the_scrubbers_rights_and_the_kernel_log():
    """tests/deploy/test_rights.py shows what the service cannot do without each of the others."""
    assert set(capabilities()) == {f"CAP_{name}" for name in (*few_rights.GIVEN, "SYSLOG")}


def test_the_page_removes_each_file_that_it_installs():
    install, _, uninstall = PAGE.read_text().partition("\n## Uninstall\n")
    made, removed = (re.findall(r"(?<!\w)/(?:etc|opt|run|var)/[\w/.-]+", part) for part in (install, uninstall))
    assert "/opt/autoclave" in made
    assert not [path for path in made if not any(path.startswith(it) or it.startswith(path) for it in removed)]
