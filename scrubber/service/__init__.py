"""The use cases: hand devices out, carry out what people ask, and keep every device moving towards clean."""
