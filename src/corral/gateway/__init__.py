"""The data plane: owns the public port, authenticates, routes and relays bytes. Imports neither the database nor
NATS."""
