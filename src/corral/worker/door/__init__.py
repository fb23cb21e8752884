"""The worker's one port with TLS, where `fleet_tls` is on: a child process in front of everything that it serves."""
