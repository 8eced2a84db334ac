"""Data sets: their files, their examples and their split over clients."""
