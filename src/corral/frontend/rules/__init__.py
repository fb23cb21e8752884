"""What the fleet shall have for ever: fleet rules, and the loop that brings them about."""
