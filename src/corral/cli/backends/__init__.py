"""`corral backends` and `corral worker backends`: the backends of the fleet, and those of this machine."""
