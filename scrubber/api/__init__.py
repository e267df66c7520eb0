"""The doors: protobuf in, values out, and back. Protobuf stops here."""
