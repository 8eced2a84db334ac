"""Settings of all tests."""

from hypothesis import settings

# Timing is not tested: on a busy machine an example takes as long as it takes.
settings.register_profile("feddm", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("feddm")
