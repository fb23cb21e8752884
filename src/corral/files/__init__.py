"""Moving files between machines: what both sides need. Knows nothing of models, nodes or databases."""
