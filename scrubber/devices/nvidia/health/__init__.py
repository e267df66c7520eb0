"""What the driver, the kernel and a GPU report about the GPU's health."""
