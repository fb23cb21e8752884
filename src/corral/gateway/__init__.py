"""The data plane: owns the public port, authenticates, routes and relays bytes. Knows no database and no NATS."""
