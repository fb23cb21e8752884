"""What can be asked for: configurations of models, and the removal of a model as a kind of operations."""
