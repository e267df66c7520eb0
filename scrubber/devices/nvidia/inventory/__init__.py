"""Which NVIDIA GPUs and MIG slices there are, and how they are connected."""
