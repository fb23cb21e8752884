"""The routes about operations: thin, as data."""
