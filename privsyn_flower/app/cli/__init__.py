"""The command line, `privsyn`: what a person types, and what is drawn for them."""
