"""What is wrong, and how things are: the doctor, metrics, readiness."""
