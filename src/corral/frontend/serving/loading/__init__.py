"""Loading models: load jobs, the work on one, the steps on a node, and making room for a load."""
