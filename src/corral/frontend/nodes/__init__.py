"""Who is in the fleet, who let them in, and whether they are alive."""
