"""The routes about backends: thin, as data."""
