"""An OpenAI URL for replicas that only speak gRPC. Thin: `dialects` translates, `rpc` calls."""
