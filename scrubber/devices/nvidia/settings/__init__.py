"""The settings of a GPU: how each is read, stored and restored."""
