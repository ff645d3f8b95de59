"""Speed on this machine, as ratios measured in one process."""
