"""Your own two-branch module and your own arrays with a client column."""

import numpy as np
import torch
from torch import nn

import fedloom

rng = np.random.default_rng(0)
hospital = rng.integers(0, 8, size=2000)
x = rng.normal(size=(2000, 12)).astype("float32")
y = (x[:, 0] + (hospital % 2) * x[:, 6] > 0).astype("int64")


# --8<-- the fifteen lines
class TwoBranches(nn.Module):
    def __init__(self):
        super().__init__()
        self.vitals, self.lab = nn.Linear(6, 16), nn.Linear(6, 16)
        self.head = nn.Linear(32, 2)

    def forward(self, x):
        branches = [self.vitals(x[:, :6]), self.lab(x[:, 6:])]
        return self.head(torch.relu(torch.cat(branches, dim=1)))


clients = fedloom.federation(x, y, clients=hospital)
result = fedloom.run(fedloom.Ditto(lr=0.1), TwoBranches, clients, rounds=20)
print(result.table())
print(result.model(3))
# --8<-- end
