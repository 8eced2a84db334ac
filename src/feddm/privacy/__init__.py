"""Releases that protect single examples: the noise that hides them, and what it is worth."""
