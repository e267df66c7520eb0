"""Looks at health, never acts. The simulated backend reports its vitals directly; signals of real GPUs come here."""
