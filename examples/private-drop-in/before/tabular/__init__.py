"""Breast cancer diagnosis by federated logistic regression."""
