"""Routes of serving: what gateways call, what people and LocalAI's programs ask about replicas and their rules."""
