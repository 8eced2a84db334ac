"""The mathematics: models, training, matching, and the types that clients and servers share."""
