"""The configuration: what can be set, presets, and errors in one sentence."""
