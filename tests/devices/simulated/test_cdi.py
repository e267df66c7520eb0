"""The CDI specification of simulated GPUs, as a container runtime reads it."""

from __future__ import annotations

import json

import pytest

from autoclave.doctor.facts import container_toolkit
from scrubber import app
from scrubber.config import BackendChoice, ScrubberConfig
from scrubber.devices.simulated import cdi, layout
from scrubber.ground.errors import FatalError


def test_each_gpu_shows_its_memory_under_its_index(bank, tmp_path):
    cdi.write(tmp_path, layout.places(bank.root))
    found = json.loads((tmp_path / cdi.NAME).read_text())
    assert found["kind"] == "nvidia.com/gpu"
    mounts = {it["name"]: it["containerEdits"]["mounts"] for it in found["devices"]}
    for index, uuid in enumerate((bank.first, bank.second)):
        [mount] = mounts[uuid]
        assert (mount["hostPath"], mount["containerPath"]) == (
            str(bank.place(uuid).memory),
            f"/dev/simulated-gpu{index}",
        )


def test_doctor_finds_the_gpus_in_it(bank, tmp_path):
    directory = tmp_path / "var/run/cdi"
    directory.mkdir(parents=True)
    cdi.write(directory, layout.places(bank.root))
    [found] = container_toolkit.cdi(tmp_path)
    assert (found.kind, found.fault) == ("nvidia.com/gpu", None)
    assert {bank.first, bank.second} <= set(found.names)


def test_an_older_specification_is_replaced_as_a_whole(bank, tmp_path):
    (tmp_path / cdi.NAME).write_text("{")
    (tmp_path / f".{cdi.NAME}.new").symlink_to(tmp_path / "elsewhere")
    cdi.write(tmp_path, layout.places(bank.root))
    assert json.loads((tmp_path / cdi.NAME).read_text())["devices"]
    assert [it.name for it in tmp_path.glob("*autoclave-simulated*")] == [cdi.NAME]
    assert not (tmp_path / "elsewhere").exists()


def test_a_missing_directory_is_named_with_its_flag(tmp_path):
    config = ScrubberConfig(
        backend=BackendChoice.SIMULATED, simulated_dir=tmp_path / "gpus", simulated_cdi_dir=tmp_path / "missing"
    )
    with pytest.raises(FatalError, match=r"No such file or directory; give a directory .* with --simulated-cdi-dir"):
        app.build_backend(config)
