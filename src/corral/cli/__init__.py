"""The command line: one file or folder per group of commands. Commands are clients of the API, or start a process."""
