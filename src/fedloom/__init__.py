"""Personalised federated learning: every client leaves with a model of its own."""
