"""A finished run's text or model as a folder that others can load, with a card that says what its
epsilon means. Opens nothing that is private."""
