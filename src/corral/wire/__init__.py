"""What crosses processes: subjects, and the structs of every request, reply and event."""
