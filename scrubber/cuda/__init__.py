"""A scrub's passes and tests by CUDA, only in a worker child. The service only calls ``cupy_loading.missing``."""
