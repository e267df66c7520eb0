"""The gRPC servers and clients of the service. Protobuf stops here."""
