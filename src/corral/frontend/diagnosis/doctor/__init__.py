"""The frontend's own diagnostics, one file each: what is wrong, and what to do about it."""
