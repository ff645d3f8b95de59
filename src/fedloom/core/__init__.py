"""What every other part stands on: the contract, records, vectors, random streams."""
