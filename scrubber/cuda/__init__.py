"""What runs only inside a worker child that has one GPU in its hands; the service asks what is missing, and no more."""
