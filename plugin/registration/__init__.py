"""Registers one resource with the kubelet, and again whenever the kubelet may have forgotten the registration.

Serves any grpc.aio device plugin whose ListAndWatch is a generator, on its own socket, registers it, and detects every
reason to register again. Knows no GPUs. ``kubelet.KubeletRegistration.run`` registers through
``kubelet.sock``, and ends only when it is cancelled.
"""
