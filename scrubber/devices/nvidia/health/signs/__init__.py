"""What is wrong with a GPU for as long as it is told: each module reads one kind of it and judges what was read."""
