"""What happened: events, and the feed that others follow."""
