"""The engines on the nodes: installing, upgrading and deleting them as a kind of operations; inventory and upgrades."""
