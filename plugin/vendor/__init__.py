"""In front of another vendor's device plugin: that plugin registers here, and its devices go out proven clean."""
