"""The fence: the kernel counts who opens a GPU that was not given to it, and can refuse it."""
