"""Dynamic Resource Allocation: pods get GPUs by ResourceClaims, and a claim gives them back."""
