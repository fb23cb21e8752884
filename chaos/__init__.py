"""Breaking Corral on purpose: long seeded rounds of faults, outside of CI, on loopback only. See `make chaos`."""
