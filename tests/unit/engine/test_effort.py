"""What a step takes, against counts by hand."""

import torch
from torch import nn

from fedloom.algorithms import Ditto, FedAvg, FedRep, PFedBayes
from fedloom.core.task import Task
from fedloom.engine.effort import efforts

INPUTS, OUTPUTS = 6, 4
PARAMETERS = (INPUTS + 1) * OUTPUTS


def taken(algorithm):
    task = Task(nn.Linear(INPUTS, OUTPUTS))
    return efforts(
        algorithm, task, (torch.zeros(1, INPUTS),), torch.zeros(1, dtype=torch.int64)
    )


def test_a_linear_layer_takes_a_product_forward_and_one_for_its_weight():
    (step,) = taken(FedAvg())
    assert step.flops == 2 * (2 * INPUTS * OUTPUTS)
    assert step.widest == 4 * PARAMETERS
    assert step.passes == 1


def test_two_gradients_a_step_take_twice_as_much():
    (one,), (two,) = taken(FedAvg()), taken(Ditto())
    assert two.flops == 2 * one.flops
    assert two.passes == 2
    assert 2 * one.calls <= two.calls < 2.5 * one.calls


def test_every_phase_is_counted():
    assert len(taken(FedRep())) == 2


def test_noise_of_several_models_is_the_widest():
    (step,) = taken(PFedBayes(monte_carlo=3))
    # Two whole numbers of 8 bytes for each of three draws of each parameter.
    assert step.widest == 3 * 2 * 8 * PARAMETERS
    assert step.passes == 3
