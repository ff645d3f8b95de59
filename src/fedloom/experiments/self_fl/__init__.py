"""The experiments of the Self-FL paper."""
