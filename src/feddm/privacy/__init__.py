"""Differentially private releases: clipping, noise, accounting, ledgers and policies."""
