"""A table of your own, with a column that says whose each row is."""

import csv
import tempfile
from pathlib import Path

import numpy as np

import fedloom
from fedloom.data import File

rng = np.random.default_rng(0)
effect = rng.normal(size=10)
folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "patients.csv"
with path.open("w", encoding="utf-8", newline="") as file:
    rows = csv.writer(file)
    rows.writerow(["hospital", *(f"lab{n}" for n in range(10)), "outcome"])
    for hospital in ("north", "south", "east", "west", "centre", "coast"):
        own_effect = effect + 0.5 * rng.normal(size=10)
        for lab in rng.normal(size=(rng.integers(30, 60), 10)):
            is_ill = lab @ own_effect + rng.logistic() > 0
            rows.writerow([hospital, *(100 + 20 * lab), "ill" if is_ill else "well"])

# --8<-- a table
patients = File(path=str(path), target="outcome", client="hospital").load(None, 0)
clients = fedloom.divide(patients, fedloom.Natural(), fedloom.Split(), seed=0)
result = fedloom.run(fedloom.Ditto(lr=0.05), "mlr", clients, rounds=20)
print(result.table())
print(result.gain("auc"))
print(result.predict("west", patients.inputs[0][:1]))  # rows as they stand in the file
# --8<-- end
folder.cleanup()
