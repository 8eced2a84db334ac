"""Algorithms of federated learning, one file each."""
