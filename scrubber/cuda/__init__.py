"""What runs only inside a worker child that has one GPU in its hands. Nothing of it is loaded by the service."""
