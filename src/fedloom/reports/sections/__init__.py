"""The parts of the page, each from findings to HTML."""
