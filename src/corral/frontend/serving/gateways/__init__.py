"""What gateways know and report: control's view of the fleet, their reports, and URLs through the adapter."""
