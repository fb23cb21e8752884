"""Routes about who may do what: keys, users, and logging in."""
