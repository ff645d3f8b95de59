"""The experiments of the pFedMT paper."""
