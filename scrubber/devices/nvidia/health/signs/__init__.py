"""Signs of a GPU that the driver shows while they last: each module reads and judges one kind of sign."""
