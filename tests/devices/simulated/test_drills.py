"""Every fault can be made and healed."""

from __future__ import annotations

import pytest

from scrubber.core.model import AilmentKind, Sign, Vitals
from scrubber.devices.base import DeviceError
from scrubber.devices.simulated import drills, layout

HOT = AilmentKind.HEAT, "so it is"
SICK = {
    "ecc": (lambda root, uuid: drills.ecc(root, uuid, 2), Vitals(ecc_uncorrectable=2)),
    "remap pending": (drills.remap, Vitals(remap_pending=True)),
    "remap failed": (lambda root, uuid: drills.remap(root, uuid, failed=True), Vitals(remap_failed=True)),
    "leak": (lambda root, uuid: drills.leak(root, uuid, 4096), Vitals(leaked_bytes=4096)),
    "lost": (drills.lose, Vitals(lost=True)),
    "sign": (lambda root, uuid: drills.sign(root, uuid, *HOT), Vitals(signs=(Sign(*HOT),))),
}


@pytest.mark.parametrize("name", SICK)
def test_a_fault_shows_in_the_vitals_until_healed(bank, name: str) -> None:
    inject, sick = SICK[name]
    inject(bank.root, bank.first)
    assert bank.backend.vitals(bank.first) == sick
    assert bank.backend.vitals(bank.second) == Vitals()
    drills.heal(bank.root, bank.first)
    assert bank.backend.vitals(bank.first) == Vitals(ecc_uncorrectable=sick.ecc_uncorrectable)


def test_heat_is_a_sign_from_its_limit_on_until_healed(bank) -> None:
    before = bank.backend.readings()
    drills.heat(bank.root, bank.first, 89)
    assert bank.backend.vitals(bank.first) == Vitals()
    drills.heat(bank.root, bank.first, 97)
    assert bank.backend.readings()[bank.first].celsius == 97.0
    hot = Sign(AilmentKind.HEAT, "it has 97 degrees Celsius, and lowers its clocks from 90 on")
    assert bank.backend.vitals(bank.first) == Vitals(signs=(hot,))
    drills.heal(bank.root, bank.first)
    assert bank.backend.readings() == before


def test_faults_add_up_and_are_healed_together(bank) -> None:
    for _ in range(2):
        drills.ecc(bank.root, bank.first)
        drills.sign(bank.root, bank.first, *HOT)
    for unit in (0, 7):
        drills.bad_compute(bank.root, bank.first, unit)
    drills.remap(bank.root, bank.first)
    drills.lose(bank.root, bank.first)
    drills.skip_scratch(bank.root, bank.first)
    sick = Vitals(ecc_uncorrectable=2, remap_pending=True, lost=True, signs=(Sign(*HOT),) * 2)
    assert bank.backend.vitals(bank.first) == sick
    faults = layout.read(bank.place(bank.first).faults, layout.Faults)
    assert (faults.bad_units, faults.skip_scratch) == ((0, 7), True)
    drills.heal(bank.root, bank.first)
    assert layout.read(bank.place(bank.first).faults, layout.Faults) == layout.Faults()


@pytest.mark.parametrize(("offset", "bit"), [(-1, 0), (2**40, 0), (0, 8), (0, -1)])
def test_a_bit_that_is_not_there_cannot_be_broken(bank, offset: int, bit: int) -> None:
    with pytest.raises(DeviceError, match="cannot break bit"):
        drills.bad_memory(bank.root, bank.first, offset, bit)
