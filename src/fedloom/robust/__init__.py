"""Rules that hold against clients who lie, and the attacks that try them."""
