"""Runs: the round loop, where clients work, and run directories."""
