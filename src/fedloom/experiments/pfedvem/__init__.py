"""Experiments of the pFedVEM paper."""
