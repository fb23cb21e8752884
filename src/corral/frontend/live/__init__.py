"""The fleet as people watch it: topics that are computed once for all readers, what needs attention, the last hour."""
