"""The routes about diagnosis: thin, as data."""
