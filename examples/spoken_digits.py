"""Spoken digits: six speakers, few recordings each, and what each gains."""

import fedloom
from fedloom.data import Fsdd
from fedloom.models import AudioCNN

try:
    digits = Fsdd(bands=24, hop_s=0.032).load(None, seed=0)
except fedloom.DataError as error:
    print(error)  # where the recordings belong; nothing is downloaded
else:
    # A speaker trains on 50 of 500 recordings, so few that the others should help.
    split = fedloom.Split(test=0.9)
    speakers = fedloom.divide(digits, fedloom.Natural(), split, seed=0)

    def network():
        """Called under the run's seed."""
        return AudioCNN(width=8).build(digits.input_shape, digits.outputs)

    # Every speaker's own model is the shared one after one more pass over its data.
    method = fedloom.FedAvg(lr=0.02, momentum=0.9, epochs=3, tuning=1)
    result = fedloom.run(method, network, speakers, rounds=10, evaluate_every=10)
    print(result.table(), result.gain(), sep="\n\n")
