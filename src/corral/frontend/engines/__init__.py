"""Engines that somebody else runs: who they are, whether they answer, and how gateways ask them."""
