"""Commands that show the fleet and change nothing: `status`, `ps`, `why`, `what-if`, `events`, `logs` and `doctor`."""
