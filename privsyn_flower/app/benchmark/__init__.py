"""The only package that opens private or held-out text outside the nodes, in simulation."""
