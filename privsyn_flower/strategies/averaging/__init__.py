"""What strategies share that train a model on the users' devices."""
