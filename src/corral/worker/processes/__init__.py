"""Processes of backends: the supervisor, the whole life of one process, its ports, its logs and its adapter."""
