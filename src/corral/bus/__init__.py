"""Messages between processes: the port that consumers use, its NATS client, and the embedded NATS server."""
