"""Read the state of this node: processes, containers, boot id, the kubelet's files. Read only."""
