"""What backends may do on this machine: files, users, system calls, network, memory, and what ends with them."""
