"""The gRPC servers of the service. Protobuf stops here."""
