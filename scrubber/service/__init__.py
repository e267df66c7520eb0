"""The use cases: hand devices out, carry out what people ask for, and bring each device back to clean."""
