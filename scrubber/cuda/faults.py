"""Which errors of CUDA are certainly not the device's fault, and what to do about each. A table, without deeds.

By the meanings that the header of the CUDA driver gives. Not in the table, because a broken device causes them too:
3 (CUDA could not start), 100 (no device: the visible one may have fallen off the bus), 719 (a kernel failed) and 999
(unknown). An error that is not in the table counts against the device.
"""

from __future__ import annotations

from scrubber.core import nvidia_advice

OUT_OF_MEMORY = 2
INVALID_VALUE = 1
TOO_MUCH = frozenset({INVALID_VALUE, 701})  # a launch asked for more than there is; 701: for more resources

_REMEDIES = {
    "end the process that uses it, or set its compute mode on the node: nvidia-smi -c DEFAULT": {46},
    f"{nvidia_advice.INSTALL}; and libcuda.so.1 of the loaded driver": {34, 35, 36, 803, 804},
    "no fault of the device: the driver refuses what this release of Autoclave asks for; update Autoclave, or the"
    " driver if it is old, and report this message with the GPU's model and the driver's version": {
        *(INVALID_VALUE, 9, 400, 701, 720, 800, 801),  # parameters, handles, resources, rights or calls
        *(98, 200, 209, 218, 222, 300, 500),  # our kernels: broken, unknown, or none that this driver or device takes
    },
    "put the driver's libnvidia-ptxjitcompiler where the service finds it, and unset CUDA_DISABLE_PTX_JIT": {221, 223},
    "look at the files and the limits of the service: memory, open files, the driver's libraries": {301, 302, 303, 304},
    "start nvidia-fabricmanager on the node, if the GPUs have switches; with confidential computing, set them ready:"
    " nvidia-smi conf-compute -srs 1": {802},
    "end the node's server of MPS": set(range(805, 810)),
}
REMEDY = {status: remedy for remedy, statuses in _REMEDIES.items() for status in statuses}
CROWDED = "end the process that uses its memory"  # out of memory before a scrub has taken any
