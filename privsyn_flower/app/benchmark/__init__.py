"""The only room that opens private or held-out text outside the nodes, in simulation."""
