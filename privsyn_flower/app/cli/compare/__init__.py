"""`privsyn compare`: a grid of runs, what they come to, and what they cost."""
