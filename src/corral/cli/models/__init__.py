"""`corral models`: the models of the fleet, and what their templates make of requests."""
