"""The kubelet's side: asks the scrubber, holds no state of its own, never loads NVML or CUDA.

The device plugin itself is not written yet; this package keeps its place and its contracts.
"""
