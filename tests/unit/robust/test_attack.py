"""Attacks of simulations: who attacks, what they send, what they train on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedloom.clients import Federation, federation
from fedloom.config import parse
from fedloom.core.errors import ConfigError
from fedloom.results.directory import RunDirectory
from fedloom.results.rows import Round
from fedloom.robust import Attack
from fedloom.robust.attacks import little_is_enough, unseen_factor
from fedloom.robust.poison import marked_tests, poisoned
from fedloom.runs import Result, resume, run_config

FILE: dict[str, Any] = {
    "rounds": 2,
    "algorithm": {"name": "ditto", "steps": 2},
    "model": {"name": "mlr"},
    "partition": {"name": "iid", "clients": 10},
}


def trained(**sections: Any) -> Result:
    return run_config(parse({**FILE, **sections}))


def images(clients: int = 4, each: int = 10) -> Federation:
    draw = np.random.default_rng(0)
    x = draw.integers(0, 200, (clients * each, 1, 5, 5)).astype(np.uint8)
    y = draw.integers(0, 3, clients * each)
    y[:3] = 0, 1, 2
    return federation(x, y, clients=np.repeat(np.arange(clients), each))


def test_attackers_are_drawn_by_the_seed_and_are_as_many_as_said() -> None:
    attack = Attack(kind="sign-flip", attackers=0.2)
    drawn = attack.draw(20, 1)
    assert len(set(drawn.tolist())) == 4
    assert drawn.tolist() == sorted(drawn.tolist()) == attack.draw(20, 1).tolist()
    assert drawn.tolist() != attack.draw(20, 2).tolist()
    assert len(Attack(kind="sign-flip", attackers=7).draw(20, 1)) == 7
    assert len(attack.draw(2, 1)) == 1
    assert len(Attack().draw(20, 1)) == 0


def test_somebody_must_be_honest() -> None:
    with pytest.raises(ConfigError, match=r"5 attackers among 5 clients leave nobody"):
        Attack(kind="sign-flip", attackers=5).draw(5, 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "mimic"}, "kind must be one of none, label-flip"),
        ({"attackers": 1.0}, "attackers must be"),
        ({"kind": "label-flip", "factor": 2.0}, "factor is for attacks on what is"),
        ({"kind": "sign-flip", "factor": 0.0}, "factor must be"),
        ({"attackers": 0.3}, r"attackers = 0\.3 does nothing without a kind of attack"),
        ({"factor": 2.0}, r"factor = 2\.0 does nothing without a kind .* set kind"),
        ({"target": 1}, "target = 1 does nothing without a kind"),
        ({"kind": "label-flip", "target": 1}, "target = 1 .* kind = 'label-flip'"),
        ({"kind": "sign-flip", "mark_size": 3}, "mark_size = 3 .* kind = 'backdoor'"),
    ],
)
def test_what_no_attack_can_have_is_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Attack(**settings)


def test_what_attackers_send_is_what_the_papers_say() -> None:
    own = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    honest = torch.tensor([[1.0, 0.0], [3.0, 2.0]])
    flip = Attack(kind="sign-flip", factor=2.0)
    assert torch.equal(flip.rows(own, honest), -2.0 * own)
    product = Attack(kind="inner-product", factor=10.0)
    expected = torch.tensor([[-20.0, -10.0]]).expand(2, 2)
    assert torch.equal(product.rows(own, honest), expected)
    little = Attack(kind="little-is-enough", factor=1.5).rows(own, honest)
    spread = 2**0.5
    assert torch.allclose(little[0], torch.tensor([2 - 1.5 * spread, 1 - 1.5 * spread]))
    assert torch.equal(little_is_enough(honest[:1], 1.5), honest[0])


def test_a_little_is_as_much_as_passes_for_ordinary() -> None:
    """n = 50, m = 12: s = 26 - 12 = 14, Phi(z) = (38 - 14) / 38."""
    assert unseen_factor(50, 12) == pytest.approx(0.336, abs=1e-3)
    assert unseen_factor(50, 24) == pytest.approx(1.426, abs=1e-3)
    assert unseen_factor(3, 1) == 0.0


def test_labels_are_flipped_for_training_by_attackers_alone() -> None:
    clients = images()
    bad = poisoned(clients, Attack(kind="label-flip"), np.array([1, 3]), 0)
    before, after = clients.dataset.targets, bad.dataset.targets
    own = torch.from_numpy(clients.train.only([1, 3]).indices)
    assert torch.equal(after[own], 2 - before[own])
    others = torch.ones(len(before), dtype=torch.bool)
    others[own] = False
    assert torch.equal(after[others], before[others])


def test_a_backdoor_marks_a_share_of_the_attackers_images_and_every_test_image() -> (
    None
):
    clients = images()
    attack = Attack(kind="backdoor", target=2, marked=0.5, mark_size=2)
    bad = poisoned(clients, attack, np.array([1]), 0)
    (x,), (was,) = bad.dataset.inputs, clients.dataset.inputs
    changed = (x != was).flatten(1).any(1).nonzero()[:, 0]
    own = set(clients.train[1].tolist())
    assert set(changed.tolist()) <= own
    assert len(changed) == round(len(own) / 2 + 1e-9)
    assert bool((x[changed][:, :, -2:, -2:] == was.max()).all())
    assert torch.equal(x[:, :, :-2, :], was[:, :, :-2, :])
    assert bad.dataset.targets[changed].tolist() == [2] * len(changed)

    marked, tests = marked_tests(clients, attack)
    assert clients.dataset.targets[tests.indices].ne(2).all()
    assert len(tests.indices) == int(
        clients.dataset.targets[clients.test.indices].ne(2).sum()
    )
    assert bool((marked.inputs[0][tests.indices][:, :, -2:, -2:] == was.max()).all())
    assert marked.targets[tests.indices].eq(2).all()


def test_data_that_cannot_be_poisoned_are_refused() -> None:
    table = federation(
        np.random.default_rng(0).normal(size=(12, 3)), [0, 1] * 6, clients=[0, 1] * 6
    )
    who = np.array([0])
    with pytest.raises(ConfigError, match=r"2 by 2 pixels of larger images"):
        poisoned(table, Attack(kind="backdoor"), who, 0)
    with pytest.raises(ConfigError, match=r"target must be a class .* 0 to 2, found 3"):
        poisoned(images(), Attack(kind="backdoor", target=3), who, 0)
    numbers = federation(
        np.random.default_rng(0).normal(size=(12, 3)),
        np.random.default_rng(1).normal(size=12),
        clients=[0, 1] * 6,
    )
    with pytest.raises(ConfigError, match=r"label-flip needs classes"):
        poisoned(numbers, Attack(kind="label-flip"), who, 0)


def test_rows_name_the_attackers_and_scores_are_of_the_others() -> None:
    result = trained(attack={"kind": "sign-flip", "attackers": 3})
    rows = result.history.rounds
    attackers = rows[1].attackers
    assert len(attackers) == 3
    assert rows[0].attackers == []
    scores = result.scores("personal")
    assert np.flatnonzero(np.isnan(scores)).tolist() == attackers
    assert "7 honest clients" in str(result.table())


def test_a_run_with_more_attackers_than_its_rule_stands_says_so() -> None:
    attack = {"kind": "sign-flip", "attackers": 4}
    few = trained(attack=attack, robust={"rule": "median", "attackers": 0.3})
    (remark,) = [r for r in few.remarks if "attackers" in r.topic]
    assert "In 2 of 2 rounds more clients attacked" in remark.text
    assert "4 where it assumes 3" in remark.text
    enough = trained(attack=attack, robust={"rule": "median", "attackers": 0.4})
    assert not [r for r in enough.remarks if "attackers" in r.topic]


def test_scoring_some_clients_scores_honest_ones() -> None:
    result = trained(attack={"kind": "sign-flip", "attackers": 3}, evaluate_clients=4)
    scores = result.scores("personal")
    assert int(np.isfinite(scores).sum()) == 4
    assert bool(np.isnan(scores[result.history.rounds[1].attackers]).all())


def test_an_attack_does_what_it_says_to_the_server() -> None:
    plain = trained(algorithm={"name": "fedavg", "steps": 2, "weights": "equal"})
    attacked = trained(
        algorithm={"name": "fedavg", "steps": 2, "weights": "equal"},
        attack={"kind": "inner-product", "attackers": 5, "factor": 1.0},
        rounds=1,
    )
    # Half send the opposite of the mean of the others, so nothing moves.
    shared = attacked.history.training.shared()
    start = attacked.history.training.task.start
    assert shared is not None
    torch.testing.assert_close(shared, start)
    other = plain.history.training.shared()
    assert other is not None
    assert not torch.allclose(other, start)


def test_a_backdoor_is_scored_on_marked_images() -> None:
    result = trained(attack={"kind": "backdoor", "attackers": 3})
    last = result.history.rounds[-1].scores
    assert 0.0 <= last["shared"]["backdoor"]["accuracy"] <= 1.0
    assert 0.0 <= last["personal"]["backdoor"]["accuracy"] <= 1.0
    assert "backdoor" in str(result.table())


class Stop:
    """Ctrl-C after the first round."""

    def start(self, *_: Any) -> None: ...

    def round(self, row: Round) -> None:
        raise KeyboardInterrupt


def test_an_attacked_run_with_a_rule_resumes_to_the_same(tmp_path: Path) -> None:
    tables = {
        **FILE,
        "rounds": 3,
        "robust": {"rule": "krum"},
        "attack": {"kind": "little-is-enough"},
        "faults": {"lost": 0.1},
        "checkpoint_every": 1,
    }
    whole = run_config(parse(tables), out=tmp_path / "whole")
    out = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        run_config(parse(tables), out=out, progress=Stop())
    again = resume(out, progress=False)
    expected, found = (r.history.training.shared() for r in (whole, again))
    assert expected is not None
    assert found is not None
    assert torch.equal(found, expected)
    rows = (RunDirectory(p).read_rounds() for p in (tmp_path / "whole", out))
    first, second = ([row.attackers for row in r] for r in rows)
    assert first == second
    assert RunDirectory(out).read_manifest()["attackers"] == first[1]
    page = again.report().read_text(encoding="utf-8")
    assert (
        "clients attack (little-is-enough), and the server uses the rule krum" in page
    )
    assert "sampled clients" not in page
