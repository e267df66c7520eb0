"""Files that people write: YAML with positions, checks of their values, units, and faults in words for operators."""
