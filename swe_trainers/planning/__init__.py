"""What a run will need, and what would stop it, told before anything is loaded."""
