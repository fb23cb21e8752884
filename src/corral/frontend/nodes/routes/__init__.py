"""The routes about nodes: thin, as data."""
