"""Where models run: placement, load jobs, replicas, replacing them without loss, the gateways' view and reports."""
