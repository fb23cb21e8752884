"""What the database knows of models: what they are and were, their removals, and the files that they were read from."""
