"""Data sets: files, examples, and how they are split over clients."""
