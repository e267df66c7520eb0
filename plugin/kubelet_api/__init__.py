"""Three gRPC interfaces of the kubelet, pinned, and the code that is generated from them.

Field names and numbers are those of Kubernetes (kubelet v1.36.2), the comments are not. Kubernetes names each of its
files ``api.proto``, but one process cannot load two files of one name, so these have other names. Protobuf keeps and
passes on fields that are newer than these files. ``make proto`` generates the code; a test compares it.
"""
