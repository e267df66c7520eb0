"""Registers one resource with the kubelet, and again whenever the kubelet may have forgotten the registration.

Serves any grpc.aio device plugin whose ListAndWatch is a generator, on its own socket, registers it, and detects every
reason to register again. Knows no GPUs. ``kubelet`` registers through ``kubelet.sock``, ``registry`` through the
``plugins_registry`` directory. Both have a ``run`` that ends only when it is cancelled.
"""
