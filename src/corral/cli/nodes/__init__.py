"""`corral nodes`: the machines of the fleet, their GPUs, who may join, and drains."""
