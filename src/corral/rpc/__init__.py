"""gRPC to backends: the only room that knows it."""
