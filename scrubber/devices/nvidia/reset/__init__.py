"""The reset of a GPU: its preconditions, its means, and what it has to restore afterwards."""
