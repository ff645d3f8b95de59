"""The server's half of a run, and how a run goes from its first round to its last."""
