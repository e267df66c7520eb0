"""The processes that touch a GPU, and the wire between them and the service."""
