"""The command line: a folder for each group of commands, and what they share. Commands are clients of the API, or start
a process."""
