"""GPUs are made once and stay who they are."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from autoclave.doctor.facts import container_toolkit
from ground.errors import FatalError
from scrubber import app
from scrubber.config import BackendChoice, ScrubberConfig
from scrubber.core.model import Vitals
from scrubber.devices.simulated import creation, drills, layout
from scrubber.devices.simulated.backend import Simulated


def test_a_gpu_keeps_its_name_and_its_memory_over_restarts(tmp_path: Path) -> None:
    creation.create(tmp_path, 1, 4096)
    before = Simulated(tmp_path).inventory()
    (tmp_path / "gpu0/memory").write_bytes(b"x" * 4096)
    creation.create(tmp_path, 2, 8192)
    after = Simulated(tmp_path).inventory()
    assert after[:1] == before
    assert (tmp_path / "gpu0/memory").read_bytes() == b"x" * 4096
    assert [info.memory_bytes for info in after] == [4096, 8192]


@pytest.mark.parametrize(("name", "size"), [("memory", 64 * 2**20), ("scratch", 2**20)])
def test_a_new_file_is_private_sparse_and_kept_over_restarts(tmp_path: Path, name: str, size: int) -> None:
    creation.create(tmp_path / "gpus", 1)
    file = tmp_path / "gpus/gpu0" / name
    made = file.stat()
    assert (made.st_size, made.st_blocks, stat.S_IMODE(made.st_mode)) == (size, 0, 0o600)
    assert [stat.S_IMODE(file.parents[above].stat().st_mode) for above in (0, 1)] == [0o700, 0o700]
    file.write_bytes(b"secret")
    creation.create(tmp_path / "gpus", 1)
    assert file.read_bytes() == b"secret"


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
    assert layout.vitals(place).xids != ()

    creation.create(tmp_path, 1, 4096, "boot-2")
    assert layout.read(layout.driver_file(tmp_path), layout.Driver).instance != before.instance
    assert layout.vitals(place) == Vitals(remap_failed=True)
    assert place.info().uuid == uuid


def test_the_doctor_finds_each_gpu_with_its_memory(bank, tmp_path):
    directory = tmp_path / "var/run/cdi"
    directory.mkdir(parents=True)
    creation.write_cdi(directory, layout.places(bank.root))
    [specification] = container_toolkit.cdi(tmp_path)
    assert (specification.kind, specification.fault) == ("nvidia.com/gpu", None)
    assert {bank.first, bank.second} <= set(specification.names)
    devices = json.loads((directory / creation.CDI_NAME).read_text())["devices"]
    mounts = {it["name"]: it["containerEdits"]["mounts"] for it in devices}
    for index, uuid in enumerate((bank.first, bank.second)):
        [mount] = mounts[uuid]
        seen_as = f"/dev/simulated-gpu{index}"
        assert (mount["hostPath"], mount["containerPath"]) == (str(bank.place(uuid).memory), seen_as)


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
