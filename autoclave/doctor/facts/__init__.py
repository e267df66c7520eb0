"""Read what files and processes of the node say. What cannot be read is a CheckFault, never an exception or a wait."""
