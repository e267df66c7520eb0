"""What the device plugin counts and shows."""
