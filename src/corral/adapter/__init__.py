"""An OpenAI URL for replicas that only speak gRPC. Thin: `dialect` translates, `rpc` calls."""
