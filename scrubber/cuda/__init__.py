"""Code that runs only in a worker child with one GPU. The service only calls ``warmth.missing``."""
