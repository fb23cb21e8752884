"""`corral ops`: operations, and how every command that starts one plans it, shows its progress and reports its end."""
