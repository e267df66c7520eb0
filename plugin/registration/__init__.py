"""Tells the kubelet of one resource, and again whenever the kubelet may have forgotten it.

Serves any device plugin of grpc.aio whose ListAndWatch is a generator on a socket of its own, registers it, and notices
every reason to do so anew. Knows nothing of GPUs. ``kubelet`` registers through ``kubelet.sock``, ``registry`` through
the ``plugins_registry`` directory; both have the same shape: a ``run`` that ends only when it is cancelled.
"""
