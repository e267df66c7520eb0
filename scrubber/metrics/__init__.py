"""What the scrub service counts and shows."""
