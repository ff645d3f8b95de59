"""JAX written by hand: vmap over the cohort, scan over steps, a round in one call.

Clients of unequal size take as many steps as the largest; those beyond a client's own
change nothing. The data stay on the device.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import peer_script
from peer_script import Record, Workload


def dense(x: Any, weight: Any, bias: Any) -> Any:
    """A linear layer with a weight in PyTorch's shape."""
    return x @ weight.T + bias


def convolve(x: Any, weight: Any, bias: Any) -> Any:
    """A convolution without padding."""
    return jax.lax.conv(x, weight, (1, 1), "VALID") + bias[:, None, None]


def pool(x: Any) -> Any:
    """The maximum of every 2 x 2 pixels."""
    window = (1, 1, 2, 2)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")


def flat(x: Any) -> Any:
    """(B, ...) to (B, features)."""
    return x.reshape(len(x), -1)


def outputs(model: str, p: list[Any], x: Any) -> Any:
    """(B, 10) what a network says."""
    relu = jax.nn.relu
    if model == "mlp":
        return dense(relu(dense(flat(x), *p[:2])), *p[2:])
    if model == "lenet":
        x = relu(pool(convolve(x, *p[:2])))
        x = flat(relu(pool(convolve(x, *p[2:4]))))
        return dense(relu(dense(relu(dense(x, *p[4:6])), *p[6:8])), *p[8:])
    x = relu(convolve(relu(convolve(x, *p[:2])), *p[2:4]))
    return dense(relu(dense(flat(pool(x)), *p[4:6])), *p[6:])


def train(workload: Workload) -> Record:
    """All rounds."""
    model, record = workload.settings["model"], Record(version=jax.__version__)
    inputs, labels = jnp.asarray(workload.inputs()), jnp.asarray(workload.labels)
    draw = np.random.default_rng(0)
    size = workload.batch_size
    longest = max(-(-len(samples) // size) for samples in workload.train)

    def loss(parameters: Any, samples: Any, is_there: Any) -> Any:
        scores = jax.nn.log_softmax(outputs(model, parameters, inputs[samples]))
        right = jnp.take_along_axis(scores, labels[samples][:, None], 1)[:, 0]
        return -(right * is_there).sum() / jnp.maximum(is_there.sum(), 1)

    def step(parameters: Any, batch: Any) -> Any:
        gradient = jax.grad(loss)(parameters, *batch)
        moved = [p - workload.lr * g for p, g in zip(parameters, gradient, strict=True)]
        return moved, None

    @jax.jit
    def run_round(shared: Any, samples: Any, is_there: Any) -> Any:
        def one_client(own: Any, here: Any) -> Any:
            return jax.lax.scan(step, shared, (own, here))[0]

        trained = jax.vmap(one_client)(samples, is_there)
        weights = is_there.sum((1, 2)) / is_there.sum()
        return [jnp.tensordot(weights, p, 1) for p in trained]

    @partial(jax.jit, static_argnums=2)
    def shares(shared: Any, samples: Any, at_once: int) -> Any:
        def share(own: Any) -> Any:
            return (outputs(model, shared, inputs[own]).argmax(1) == labels[own]).mean()

        return jax.lax.map(share, samples, batch_size=at_once)

    shared = [jnp.asarray(start) for start in workload.parameters]
    tests = jnp.asarray(np.stack(workload.test))
    for cohort in workload.cohorts:
        samples = np.zeros((len(cohort), longest * size), dtype=np.int32)
        is_there = np.zeros((len(cohort), longest * size), dtype=np.float32)
        for row, client in enumerate(cohort):
            own = draw.permutation(workload.train[client])
            samples[row, : len(own)], is_there[row, : len(own)] = own, 1.0
        shape = (len(cohort), longest, size)
        shared = run_round(shared, samples.reshape(shape), is_there.reshape(shape))
        record.gradients += int(is_there.sum())
        if workload.scores_clients:
            record.client_accuracy = float(shares(shared, tests, 10).mean())
            record.scored += tests.size
        jax.block_until_ready(shared)
        record.end_round()
    everyone = jnp.asarray(workload.everyones_test).reshape(-1, 1000)
    record.accuracy = float(shares(shared, everyone, 1).mean())
    return record


if __name__ == "__main__":
    peer_script.main(train)
