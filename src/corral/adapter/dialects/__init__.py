"""Between the APIs that clients speak and the messages of the contract with backends. Pure."""
