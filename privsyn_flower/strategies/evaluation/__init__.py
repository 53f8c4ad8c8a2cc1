"""Given models, measured on the users' text."""
