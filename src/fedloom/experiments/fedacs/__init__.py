"""The experiments of the FedACS paper."""
