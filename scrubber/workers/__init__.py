"""The processes that touch a GPU, and the messages between them and the service."""
