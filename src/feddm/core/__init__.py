"""The mathematics: models, training, matching, and the types that travel."""
