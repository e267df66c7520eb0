"""NVIDIA GPUs through NVML, the driver's files and ``nvidia-smi``. Nothing here starts CUDA."""
