"""What the commands print: documents, tables, and what only a terminal gets."""
