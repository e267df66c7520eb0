"""The kubelet's wire: three of its interfaces, pinned, and the code generated from them.

Field names and numbers are Kubernetes' (kubelet v1.36.2), words are ours. The files have names of their own because
Kubernetes calls every one of its own ``api.proto``, and two of a name cannot live in one process. A field that is newer
than these files is kept and passed on, as protobuf does. ``make proto`` regenerates; the gate compares.
"""
