"""The kubelet's side: asks the scrubber, holds no state of its own, never loads NVML or CUDA.

One process beside the scrub service, without privileges: it serves a socket for each resource, tells the kubelet of it,
and answers the kubelet's hooks with what the scrub service says. ``testing`` is a kubelet for tests.
"""
