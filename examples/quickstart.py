"""Ten lines: the embedded digits, twenty unequal clients, one model each."""

import fedloom
from fedloom.data import Digits

digits = Digits().load(None, seed=0)
partition = fedloom.LabelSkew(clients=20, classes=5, sizes="random")
clients = fedloom.divide(digits, partition, fedloom.Split(test=0.25), seed=0)

for method in (fedloom.Local(lr=0.1), fedloom.FedAvg(lr=0.1), fedloom.Ditto(lr=0.1)):
    result = fedloom.run(method, "mlp", clients, rounds=30)
    print(f"{method.name}: {result.table()}\n")

print(result.model(7))  # client 7's own model, an ordinary nn.Module
