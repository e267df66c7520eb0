"""One scrub from its start to its receipt."""
