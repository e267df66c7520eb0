"""The metrics and the readiness of the device plugin."""
