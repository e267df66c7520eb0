"""Machines that are sold: what their GPUs answer when they are healthy and idle."""

from __future__ import annotations

MIB = 2**20
BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)  # of eight GPUs; the first four hang on the first processor
ON_FIRST_NODE = 4
UP, DOWN = "1 2 4 00000000:05:00.0", "0 2 4 00000000:05:00.0"  # one NVLink

# What an H200 can be cut into. The first number is NVML's for the profile, id is the one that makes it. Placements and
# ids are those of the hardware; what engines and memory come with it is near enough.
_MIG_FIELDS = ("name", "id", "slices", "instances", "size", "starts", "memory_mb", "multiprocessors", "copy_engines")
MIG_PROFILES: dict[int, tuple[object, ...]] = {
    0: ("1g.18gb", 19, 1, 7, 1, "0 1 2 3 4 5 6", 16384, 16, 1),
    1: ("2g.35gb", 14, 2, 3, 2, "0 2 4", 33280, 32, 2),
    2: ("3g.71gb", 9, 3, 2, 4, "0 4", 71168, 60, 3),
    3: ("4g.71gb", 5, 4, 1, 4, "0", 71168, 64, 4),
    4: ("7g.141gb", 0, 7, 1, 8, "0", 143360, 132, 8),
    7: ("1g.18gb+me", 20, 1, 1, 1, "0 1 2 3 4 5 6", 16384, 16, 1),
    9: ("1g.35gb", 15, 1, 4, 2, "0 2 4 6", 33280, 26, 1),
}
PROFILE_BY_NAME = {str(values[0]): number for number, values in MIG_PROFILES.items()}


def uuid(number: int) -> str:
    """The UUID of the GPU of that number."""
    return f"GPU-5e7f{number:04x}-1111-4222-8333-a0b1c2d3e4f5"


def mig_uuid(gpu: str, gi: int, ci: int, salt: str = "") -> str:
    """The UUID of a slice, the same one for the same GPU and numbers, as on hardware. mig.c computes it too."""
    name = f"{gpu}/{gi}/{ci}/{salt}".encode()
    high = _mixed(0xCBF29CE484222325, name)
    text = f"{high:016x}{_mixed(high, name):016x}"
    return f"MIG-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _mixed(seed: int, text: bytes) -> int:
    for byte in text:
        seed = (seed ^ byte) * 0x100000001B3 & 2**64 - 1
    return seed


def host() -> dict[str, object]:
    """The driver. Setters are allowed also without root."""
    return {
        "driver_version": "580.95.05",
        "nvml_version": "13.580.95.05",
        "cuda_version": 13000,
        "privileged": 1,
        "smi.reset": "ok",
    }


def h200(number: int) -> dict[str, object]:
    """One GPU of an eight-way machine with NVSwitches."""
    node = 0 if number % len(BUSES) < ON_FIRST_NODE else 1
    return (
        _identity(number)
        | {"numa_node": node}
        | _memory()
        | _errors()
        | _settings()
        | _motion()
        | _links()
        | _mig()
        | {f"processes.{kind}": "" for kind in ("compute", "graphics", "mps")}
    )


def _identity(number: int) -> dict[str, object]:
    return {
        "uuid": uuid(number),
        "name": "NVIDIA H200",
        "serial": f"16540230{number:05}",
        "minor": number,
        "pci": f"{number // len(BUSES):08X}:{BUSES[number % len(BUSES)]:02X}:00.0",
        "pci_device_id": 0x233510DE,
        "compute.major": 9,
        "compute.minor": 0,
        "architecture": 9,
        "virtualization_mode": 0,
        "event_types": 0xFF9F,
    }


def _memory() -> dict[str, object]:
    return {
        "memory.total": 143771 * MIB,
        "memory.reserved": 614 * MIB,
        "memory.used": 4 * MIB,
        "memory.idle": 4 * MIB,  # what is used after a reset; NVML never tells this one
        "memory.bus_width": 6144,
    }


def _errors() -> dict[str, object]:
    totals = {f"ecc.total.{error}.{counter}": 0 for error in (0, 1) for counter in (0, 1)}
    rows = {f"remap.{what}": 0 for what in ("corrected", "uncorrected", "pending", "failure")}
    sram = {"sram.exceeded": 0}
    action = {"field.230": 0}
    on: dict[str, object] = {"ecc.current": 1, "ecc.pending": 1}
    return on | totals | rows | sram | action


def _settings() -> dict[str, object]:
    return {
        "persistence_mode": 1,
        "compute_mode": 0,
        "power.limit": 700000,
        "power.default": 700000,
        "power.min": 200000,
        "power.max": 700000,
        "clock.locked.gpu": "none",
        "clock.locked.memory": "none",
    } | {
        f"clock.{what}.{kind}": clock
        for what in ("app", "app_default", "max")
        for kind, clock in ((0, 1980), (1, 1980), (2, 3201))
    }


def _motion() -> dict[str, object]:
    return {
        "clock.0": 345,
        "clock.1": 345,
        "clock.2": 3201,
        "clock.reasons": 1,
        "load": 0,
        "temperature.0": 31,
        "temperature.limit.1": 90,  # where it slows down; a number of ours
        "power.usage": 76000,
        "pcie.width": 16,
        "pcie.replays": 0,
    }


def _links() -> dict[str, object]:
    """Eighteen links, to four switches."""
    links: dict[str, object] = {f"nvlink.{link}": f"1 2 4 00000000:{5 + link % 4:02X}:00.0" for link in range(18)}
    fabric = {"fabric.state": 3, "fabric.status": 0, "fabric.clique": 0, "fabric.health": 0}
    return links | fabric | {"fabric.cluster": "00" * 16}


def _mig() -> dict[str, object]:
    profiles = {
        f"profile.{number}.{field}": value
        for number, values in MIG_PROFILES.items()
        for field, value in zip(_MIG_FIELDS, values, strict=True)
    }
    return {"mig_mode.current": 0, "mig_mode.pending": 0, "mig_mode.max": 7} | profiles
