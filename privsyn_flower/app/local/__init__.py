"""Flower on this machine: simulations, federations, their certificates, processes and files."""
