"""Federated text sets."""
