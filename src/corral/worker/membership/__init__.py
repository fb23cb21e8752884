"""Being a member of a fleet: joining, heartbeats, reports, leaving, and who this node is to its frontend."""
