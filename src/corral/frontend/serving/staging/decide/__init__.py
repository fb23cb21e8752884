"""Pure decisions about staging: paths on nodes, who sends a file, and what is deleted when a disk is full."""
