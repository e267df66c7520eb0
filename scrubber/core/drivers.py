"""What Autoclave needs of NVIDIA's driver."""

from __future__ import annotations

SINCE = {"cuda12": 525, "cuda13": 580}  # our extras, with the release of the driver from which their CuPy works
INSTALL = "install autoclave[cuda12] for a driver from 525 on, or autoclave[cuda13] for one from 580 on, not both"
# The open kernel modules of the driver define the option (nv-reg.h); R580 is the first release with it.
MANAGE_MEMORY = "load a driver of 580 or newer with NVreg_CoherentGPUMemoryMode=driver, and reboot the node"


def extras(driver: str) -> tuple[str, ...]:
    """Those of our extras whose CuPy works with this version of the driver; all if the version is no number."""
    release = driver.partition(".")[0]
    return tuple(extra for extra, since in SINCE.items() if not release.isdecimal() or int(release) >= since)
