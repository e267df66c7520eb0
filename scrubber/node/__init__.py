"""Who uses what on this node: processes, boot id, kubelet. Looks, never acts."""
