"""What this machine has: GPUs, memory, disks and processors, and the limits that its control groups set."""
