"""Written by `make proto` from proto/backend.proto."""
