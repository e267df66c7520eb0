"""Code that runs only in a worker child with one GPU. The service only calls ``cupy_loading.missing``."""
