"""Translates between the APIs of clients (OpenAI, Anthropic, LocalAI) and the gRPC messages of backends. Pure."""
