"""The metrics of the device plugin."""
