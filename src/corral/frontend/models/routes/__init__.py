"""The routes about models: thin, as data."""
