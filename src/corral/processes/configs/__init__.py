"""What each process is configured with, made of its settings: one module for each, imported by its commands only.

Here settings that contradict each other are refused, since only together they can. What is said of a single value is
in `settings_kinds/`.
"""
