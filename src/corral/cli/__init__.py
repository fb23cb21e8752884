"""The command line: one file per group of commands. Commands are clients of the admin API, or start a process."""
