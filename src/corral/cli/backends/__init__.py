"""`corral backends`: which backends the fleet has, which it must have, and what they may do."""
