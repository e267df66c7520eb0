"""The device plugin: it serves the kubelet, asks the scrub service, holds no state and never loads NVML or CUDA.

One unprivileged process beside the scrub service. It serves one socket for each resource, registers it with the
kubelet, and answers the kubelet's calls with the decisions of the scrub service.
"""
