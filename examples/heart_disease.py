"""Four hospitals that share no patient: does working together help each of them?

Needs the four processed files of Heart Disease (UCI) in FEDLOOM_DATA/heart-disease.
"""

import fedloom
from fedloom.data import HeartDisease

patients = HeartDisease().load(None, seed=0)
clients = fedloom.divide(patients, fedloom.Natural(), fedloom.Split(), seed=0)

for method in (fedloom.FedAvg(lr=0.05), fedloom.Ditto(lr=0.05)):
    result = fedloom.run(method, "mlr", clients, rounds=30, evaluate_every=30)
    print(f"{method.name}: {result.table()}\n")
    # The AUC: most Swiss patients are ill, so that accuracy says little there.
    print(f"{result.gain('auc')}\n")
