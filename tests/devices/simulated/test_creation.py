"""GPUs are made once and stay who they are."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from autoclave.doctor.facts import container_toolkit
from scrubber import app
from scrubber.config import BackendChoice, ScrubberConfig
from scrubber.core.model import Vitals
from scrubber.devices.simulated import condition, creation, drills, layout
from scrubber.devices.simulated.backend import Simulated
from scrubber.ground.errors import FatalError


def test_a_gpu_keeps_its_name_and_its_memory_over_restarts(tmp_path: Path) -> None:
    creation.create(tmp_path, 1, 4096)
    before = Simulated(tmp_path).inventory()
    (tmp_path / "gpu0/memory").write_bytes(b"x" * 4096)
    creation.create(tmp_path, 2, 8192)
    after = Simulated(tmp_path).inventory()
    assert after[:1] == before
    assert (tmp_path / "gpu0/memory").read_bytes() == b"x" * 4096
    assert [info.memory_bytes for info in after] == [4096, 8192]


def test_a_new_chip_is_zero_sparse_and_kept_over_restarts(tmp_path: Path) -> None:
    creation.create(tmp_path, 1, 4096)
    file = tmp_path / "gpu0/scratch"
    assert (file.stat().st_size, file.stat().st_blocks, stat.S_IMODE(file.stat().st_mode)) == (2**20, 0, 0o600)
    file.write_bytes(b"secret")
    creation.create(tmp_path, 1, 4096)
    assert file.read_bytes() == b"secret"


def test_only_the_owner_may_read_the_memory_file(tmp_path: Path) -> None:
    creation.create(tmp_path / "gpus", 1, 4096)
    assert stat.S_IMODE((tmp_path / "gpus").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "gpus/gpu0").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "gpus/gpu0/memory").stat().st_mode) == 0o600


def test_the_memory_takes_no_space_before_it_is_used(tmp_path: Path) -> None:
    creation.create(tmp_path, 1)
    memory = (tmp_path / "gpu0/memory").stat()
    assert (memory.st_size, memory.st_blocks) == (64 * 2**20, 0)


def test_a_reloaded_simulated_driver_is_another_instance(tmp_path: Path) -> None:
    creation.create(tmp_path, 1, 4096)
    backend = Simulated(tmp_path)
    before = backend.driver()
    creation.create(tmp_path, 1, 4096)
    assert backend.driver() == before
    creation.load_driver(tmp_path)
    assert backend.driver() != before


def test_a_reboot_changes_the_driver_instance_and_clears_volatile_state(tmp_path: Path) -> None:
    creation.create(tmp_path, 1, 4096, "boot-1")
    [place] = layout.places(tmp_path)
    uuid = place.info().uuid
    drills.xid(tmp_path, uuid, 79)
    drills.ecc(tmp_path, uuid)
    drills.remap(tmp_path, uuid, failed=True)
    before = layout.read(layout.driver_file(tmp_path), layout.Driver)

    creation.create(tmp_path, 1, 4096, "boot-1")
    assert layout.read(layout.driver_file(tmp_path), layout.Driver) == before
    assert condition.vitals(place).xids != ()

    creation.create(tmp_path, 1, 4096, "boot-2")
    assert layout.read(layout.driver_file(tmp_path), layout.Driver).instance != before.instance
    assert condition.vitals(place) == Vitals(remap_failed=True)
    assert place.info().uuid == uuid


def test_each_gpu_shows_its_memory_under_its_index(bank, tmp_path):
    creation.write_cdi(tmp_path, layout.places(bank.root))
    found = json.loads((tmp_path / creation.CDI_NAME).read_text())
    assert found["kind"] == "nvidia.com/gpu"
    mounts = {it["name"]: it["containerEdits"]["mounts"] for it in found["devices"]}
    for index, uuid in enumerate((bank.first, bank.second)):
        [mount] = mounts[uuid]
        assert (mount["hostPath"], mount["containerPath"]) == (
            str(bank.place(uuid).memory),
            f"/dev/simulated-gpu{index}",
        )


def test_the_doctor_finds_the_simulated_gpus(bank, tmp_path):
    directory = tmp_path / "var/run/cdi"
    directory.mkdir(parents=True)
    creation.write_cdi(directory, layout.places(bank.root))
    [found] = container_toolkit.cdi(tmp_path)
    assert (found.kind, found.fault) == ("nvidia.com/gpu", None)
    assert {bank.first, bank.second} <= set(found.names)


def test_an_older_specification_is_replaced_as_a_whole(bank, tmp_path):
    (tmp_path / creation.CDI_NAME).write_text("{")
    (tmp_path / f".{creation.CDI_NAME}.new").symlink_to(tmp_path / "elsewhere")
    creation.write_cdi(tmp_path, layout.places(bank.root))
    assert json.loads((tmp_path / creation.CDI_NAME).read_text())["devices"]
    assert [it.name for it in tmp_path.glob("*autoclave-simulated*")] == [creation.CDI_NAME]
    assert not (tmp_path / "elsewhere").exists()


def test_a_missing_directory_is_named_with_its_flag(tmp_path):
    config = ScrubberConfig(
        backend=BackendChoice.SIMULATED, simulated_dir=tmp_path / "gpus", simulated_cdi_dir=tmp_path / "missing"
    )
    with pytest.raises(FatalError, match=r"No such file or directory; give a directory .* with --simulated-cdi-dir"):
        app.build_backend(config)
