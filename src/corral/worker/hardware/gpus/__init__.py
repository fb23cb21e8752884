"""The GPUs of this machine: one file per way to find them, and one that asks them all."""
