"""What a client promises to be bounded is bounded when a secure sum has rounded it.

Noise and its account are for sums of which one client changes no more than its bound.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedloom.algorithms import FedAvg, Scaffold
from fedloom.config import parse
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import ConfigError
from fedloom.core.records import leaves
from fedloom.core.rounding import Rounding, norm_before_rounding
from fedloom.core.secure_sums import SecureSums
from fedloom.deploy.server import served_method
from fedloom.privacy import Privacy, private
from fedloom.remote.summands import SummandForm, by_sums
from fedloom.robust import Attack, Robust, around

CLIP = 0.5
HIDDEN = Privacy(clip=CLIP, noise=1.0, delta=1e-5)


def norms_in_the_sum(
    algorithm: AnyAlgorithm, secure: SecureSums, clients: int, changes: torch.Tensor
) -> list[float]:
    """The norms of a client's vectors as they are added to those of others."""
    rounding = secure.rounding(clients)
    method: Any = by_sums(algorithm, 1.0, rounding)
    record = method.records[4]
    vectors = [changes for _ in record._fields[:-1]]
    summand = record(*vectors, torch.ones((), dtype=changes.dtype))
    sent = method.leave(summand, None).sent
    form = SummandForm(method, sent, secure)
    code = form.code(rounding.bits)
    norms = []
    for key in range(3):
        words = code.encode(form.flatten(sent, "north"), bytes([key]) * 32)
        fields = form.rebuild(code.decode(words))
        assert float(leaves(fields)[-1]) == pytest.approx(1.0, abs=1e-6)
        norms += [float(torch.linalg.vector_norm(v.double())) for v in fields[:-1]]
    return norms


@pytest.mark.parametrize(
    ("bits", "d", "clients"),
    [(None, 1_000_000, 10), (None, 1_000_000, 1000), (20, 100_000, 10), (12, 30, 3)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_clipped_change_is_within_its_bound_whatever_is_rounded(
    bits: int | None, d: int, clients: int, dtype: torch.dtype
) -> None:
    """Numbers at half a step, and of all sizes; just below the bound and far beyond."""
    secure = SecureSums(bits=bits)
    step = secure.rounding(clients).step("vector")
    odd = torch.full((d,), CLIP / d**0.5, dtype=dtype)
    drawn = torch.from_numpy(np.random.default_rng(0).standard_normal(d)).to(dtype)
    halves = (torch.arange(d, dtype=dtype) % 2 + 0.5) * step
    for changes in (odd, 1e6 * drawn, drawn * CLIP / drawn.norm(), halves, 0 * odd):
        norms = norms_in_the_sum(private(FedAvg(), HIDDEN), secure, clients, changes)
        assert max(norms) <= CLIP


def test_every_field_has_a_bound_of_its_own_after_rounding() -> None:
    settings = Privacy(clip=CLIP, clips={"variate": 0.1}, noise=1.0, delta=1e-5)
    changes = torch.ones(10_000, dtype=torch.float64)
    method = private(Scaffold(), settings)
    norms = norms_in_the_sum(method, SecureSums(bits=20), 10, changes)
    fields = Scaffold().summand_record._fields
    expected = [0.1 if name == "variate" else CLIP for name in fields[:-1]]
    for norm, bound in zip(norms, 3 * expected, strict=True):
        assert 0.9 * bound < norm <= bound


def test_a_norm_bound_of_clients_holds_after_rounding() -> None:
    method = around(FedAvg(), Robust(rule="norm-bound", bound=CLIP), Attack())
    changes = torch.ones(100_000, dtype=torch.float64)
    norms = norms_in_the_sum(method, SecureSums(bits=20), 10, changes)
    assert max(norms) <= CLIP


def test_what_is_rounded_after_its_noise_or_is_whole_needs_no_room() -> None:
    rounding = SecureSums(bits=4).rounding(10)
    for at in ("local", "clients"):
        own = {"least_clients": 3} if at == "clients" else {}
        settings = Privacy(clip=CLIP, noise=1.0, delta=1e-5, at=at, **own)  # type: ignore[arg-type]
        method = private(FedAvg(), settings)
        made: Any = by_sums(method, 1.0, rounding)
        assert made.leave == method.leave


def test_noise_and_what_a_server_releases_are_as_without_secure_sums() -> None:
    method = private(FedAvg(), HIDDEN)
    made: Any = by_sums(method, 1.0, SecureSums().rounding(10))
    assert made.release is method.release
    assert repr(made.leave.fields) == repr(method.leave.fields)


def test_rounding_may_take_a_tenth_of_a_bound() -> None:
    assert norm_before_rounding(1.0, 0.0, 10**9) == 1.0
    assert norm_before_rounding(1.0, 0.001, 10_000) == pytest.approx(0.9, abs=1e-5)
    assert Rounding(bits=9, bound=16.0).step("weight") == 0.0
    with pytest.raises(ConfigError, match=r"norm of 1, and rounding its 10000 numbers"):
        norm_before_rounding(1.0, 0.00101, 10_000)


@pytest.mark.parametrize(
    ("tables", "found"),
    [
        ({"privacy": {"noise": 1.0, "delta": 1e-3}, "secure": {"bits": 2}}, "16"),
        (
            {"privacy": {"noise": 1.0, "delta": 1e-3}, "secure": {"bound": 1e9}},
            r"7\.45",
        ),
        ({"robust": {"rule": "norm-bound", "bound": 0.5}, "secure": {"bits": 6}}, "."),
    ],
)
def test_rounding_that_no_bound_leaves_room_for_is_refused_before_a_server_listens(
    tables: dict[str, Any], found: str, tmp_path: Any
) -> None:
    if "privacy" in tables:
        more = {"clip": CLIP, "secret": str(tmp_path / "secret")}
        tables = {**tables, "privacy": {**tables["privacy"], **more}}
    config = parse(tables)
    reason = (
        rf"norm of 0\.5, and rounding its 1 number to .*{found}.*Raise secure\.bits"
    )
    with pytest.raises(ConfigError, match=reason):
        served_method(config, 12, "only")
