"""The routes about serving: thin, as data."""
