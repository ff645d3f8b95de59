"""`fedloom.run`, `load` and `resume`: the Python surface."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import fedloom
from fedloom.config import parse
from fedloom.results.directory import RunDirectory
from fedloom.runs import resume, run_config

QUICK = {"rounds": 3, "partition": {"name": "label-skew", "clients": 6, "classes": 4}}


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x)))


def read_table(path):
    """As anybody would read it who has no Fedloom."""
    return pa.ipc.open_stream(path.read_bytes()).read_all()


@pytest.fixture
def clients() -> fedloom.Federation:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(120, 4)).astype("float32")
    y = rng.integers(0, 3, size=120)
    ward = np.array(["north", "south", "west"])[rng.integers(0, 3, size=120)]
    return fedloom.federation(x, y, clients=ward)


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def test_every_client_leaves_with_a_module_of_the_users_own_class(clients):
    result = fedloom.run("ditto", Small, clients, rounds=2)
    north, south = result.model("north"), result.model("south")
    assert type(north) is Small
    assert not torch.equal(flat(north), flat(south))
    x = torch.zeros(5, 4)
    assert north(x).shape == (5, 3)


def test_the_model_given_back_is_the_one_that_was_scored(clients):
    result = fedloom.run("ditto", Small, clients, rounds=2)
    for row, name in enumerate(clients.names):
        chosen = clients.test[row]
        x = clients.dataset.inputs[0][chosen]
        y = clients.dataset.targets[chosen]
        right = (result.model(name)(x).argmax(1) == y).double().mean()
        assert result.scores()[row] == pytest.approx(float(right))


def test_a_model_given_as_a_function_depends_on_the_seed_alone(clients):
    torch.rand(3)
    first = fedloom.run("fedavg", Small, clients, rounds=1, seed=4)
    torch.rand(5)
    second = fedloom.run("fedavg", Small, clients, rounds=1, seed=4)
    other = fedloom.run("fedavg", Small, clients, rounds=1, seed=5)
    assert torch.equal(flat(first.shared_model()), flat(second.shared_model()))
    assert not torch.equal(flat(first.shared_model()), flat(other.shared_model()))


def test_a_module_is_taken_as_the_common_start_and_never_changed(clients):
    module = Small()
    before = flat(module).clone()
    fedloom.run("fedavg", module, clients, rounds=2)
    assert torch.equal(flat(module), before)


def test_a_saved_run_loads_to_the_same_models(clients, tmp_path):
    result = fedloom.run("ditto", Small, clients, rounds=2, seed=3)
    path = result.save(tmp_path / "run")
    again = fedloom.load(path, Small, clients)
    for name in clients.names:
        assert torch.equal(flat(again.model(name)), flat(result.model(name)))
    assert list(again.table()) == list(result.table())


def test_loading_an_own_run_without_its_model_says_what_to_give(clients, tmp_path):
    path = fedloom.run("local", Small, clients, rounds=1).save(tmp_path / "run")
    with pytest.raises(fedloom.ConfigError, match=r"fedloom\.load\(path, model, clie"):
        fedloom.load(path)


def test_an_unknown_client_is_refused_with_the_known_ones(clients):
    result = fedloom.run("local", Small, clients, rounds=1)
    with pytest.raises(fedloom.DataError, match="Did you mean 'north'"):
        result.model("nort")
    with pytest.raises(fedloom.DataError, match="clients 0 to 2"):
        result.model(3)


def test_regression_is_scored_by_squared_error(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2)).astype("float32")
    y = (x @ np.array([1.0, -2.0])).astype("float32")
    clients = fedloom.federation(x, y, clients=np.arange(60) % 3)
    result = fedloom.run(
        fedloom.FedAvg(lr=0.05), lambda: nn.Linear(2, 1), clients, rounds=30
    )
    shared = next(row for row in result.table() if row["part"] == "test")
    assert result.table().metric == "mse"
    assert shared["mean"] < 0.05


def test_frozen_parameters_stay_and_are_not_sent(clients):
    def half_frozen() -> nn.Module:
        module = Small()
        module.body.requires_grad_(False)
        return module

    result = fedloom.run("fedavg", half_frozen, clients, rounds=2, seed=1)
    start = fedloom.run("local", half_frozen, clients, rounds=1, seed=1)
    trained = result.shared_model()
    assert torch.equal(trained.body.weight, start.model(0).body.weight)
    assert not torch.equal(trained.head.weight, start.model(0).head.weight)
    head_bytes = 4 * (8 * 3 + 3)
    report_bytes = 4 + 8 + 8
    sent = clients.count * (head_bytes + report_bytes)
    assert result.history.rounds[1].bytes_up == sent


def test_own_losses_train(clients):
    def hinge(outputs, targets):
        right = outputs.gather(1, targets[:, None])
        return torch.relu(1 + outputs - right).sum(1) - 1

    result = fedloom.run("fedavg", Small, clients, rounds=3, loss=hinge)
    losses = [row.train_loss for row in result.history.rounds[1:]]
    assert losses[-1] < losses[0]


def test_a_model_that_does_not_fit_the_data_is_refused(clients):
    with pytest.raises(fedloom.ContractError, match="cannot take the inputs"):
        fedloom.run("fedavg", lambda: nn.Linear(9, 3), clients, rounds=1)
    with pytest.raises(fedloom.ContractError, match="3 classes"):
        fedloom.run("fedavg", lambda: nn.Linear(4, 2), clients, rounds=1)


def test_a_model_that_cannot_be_batched_over_clients_is_refused(clients):
    class Peeks(Small):
        def forward(self, x):
            return super().forward(x) * (1.0 if self.head.bias.sum().item() > 0 else 2)

    with pytest.raises(fedloom.ContractError, match=r"runner=loop"):
        fedloom.run("fedavg", Peeks, clients, rounds=1)
    loop = fedloom.EngineSettings(runner="loop")
    result = fedloom.run("fedavg", Peeks, clients, rounds=1, engine=loop)
    assert result.table().rows
    assert result.gain().alone.shape == (3,)


def test_a_diverged_run_names_round_client_and_step(clients):
    with pytest.raises(fedloom.NumericalError) as error:
        fedloom.run(fedloom.FedAvg(lr=1e30), Small, clients, rounds=3)
    assert error.match(r"round \d+, client north, phase 1, step \d+: ")
    assert error.match("lr is 1e[+]30")


@pytest.mark.parametrize(
    ("asked", "scored"),
    [({}, [True, False, False, True]), ({"evaluate_train": True}, [True] * 4)],
)
def test_training_data_are_scored_at_both_ends_unless_asked_for(asked, scored):
    result = run_config(parse({**QUICK, "evaluate_start": True, **asked}))
    rows = result.history.rounds
    assert ["train" in row.scores["personal"] for row in rows] == scored
    assert all("test" in row.scores["personal"] for row in rows)


def test_without_held_out_data_every_evaluation_scores_training_data():
    split = {"test": 0.0, "validation": 0.0}
    rows = run_config(parse({**QUICK, "split": split})).history.rounds
    assert all(list(row.scores["personal"]) == ["train"] for row in rows[1:])


def test_a_run_directory_holds_what_it_promises(tmp_path):
    result = run_config(parse(QUICK), out=tmp_path / "run")
    directory = RunDirectory.open(tmp_path / "run")
    assert [row.round for row in directory.read_rounds()] == [0, 1, 2, 3]
    table = read_table(tmp_path / "run" / "clients.arrows")
    # Clients x (shared, personal), on test data every round and at last on both parts.
    assert table.num_rows == 6 * 2 * (3 + 1)
    assert set(table.column_names) >= {"round", "client", "kind", "part", "accuracy"}
    log = read_table(tmp_path / "run" / "client_log.arrows")
    assert log.num_rows == 3 * 6
    manifest = directory.read_manifest()
    assert manifest["split"] == result.federation.hash
    assert manifest["seed"] == 0
    assert manifest["torch"] == torch.__version__
    resolved = parse(fedloom.config.read_toml(directory.config))
    assert resolved.partition.clients == 6


def test_the_resolved_config_gives_the_same_run(tmp_path):
    run_config(parse(QUICK), out=tmp_path / "a")
    tables = fedloom.config.read_toml(tmp_path / "a" / "config.toml")
    run_config(parse(tables), out=tmp_path / "b")
    assert strip(tmp_path / "a") == strip(tmp_path / "b")


def strip(path):
    """The rows of a run without what the clock says."""
    lines = (path / "rounds.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def test_a_resumed_run_equals_one_that_was_never_stopped(tmp_path):
    tables = {
        **QUICK,
        "rounds": 6,
        "checkpoint_every": 2,
        "algorithm": {"name": "ditto"},
        "sampling": {"rate": 0.5},
    }
    whole = run_config(parse(tables), out=tmp_path / "whole")

    class Stop:
        def start(self, *_):
            pass

        def round(self, row):
            if row.round == 5:
                raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        run_config(parse(tables), out=tmp_path / "cut", progress=Stop())
    again = resume(tmp_path / "cut")
    assert strip(tmp_path / "cut") == strip(tmp_path / "whole")
    for client in range(6):
        assert torch.equal(flat(again.model(client)), flat(whole.model(client)))


def test_a_run_from_python_is_resumed_with_its_model_and_clients(clients, tmp_path):
    class Stop:
        def start(self, *_):
            pass

        def round(self, row):
            if row.round == 3:
                raise RuntimeError("power cut")

    settings = {"rounds": 4, "seed": 2, "checkpoint_every": 2}
    whole = fedloom.run("ditto", Small, clients, **settings)
    out = tmp_path / "run"
    with pytest.raises(RuntimeError):
        fedloom.run("ditto", Small, clients, out=out, progress=Stop(), **settings)
    again = fedloom.resume(out, Small, clients)
    for name in clients.names:
        assert torch.equal(flat(again.model(name)), flat(whole.model(name)))


def test_ctrl_c_finishes_the_exchange_and_leaves_a_checkpoint(tmp_path):
    import signal

    class Press:
        def start(self, *_):
            pass

        def round(self, row):
            if row.round == 2:
                signal.raise_signal(signal.SIGINT)

    tables = {**QUICK, "rounds": 5, "checkpoint_every": 100}
    with pytest.raises(KeyboardInterrupt):
        run_config(parse(tables), out=tmp_path / "run", progress=Press())
    resumed = resume(tmp_path / "run")
    assert [row.round for row in resumed.history.rounds] == [0, 1, 2, 3, 4, 5]


def test_an_output_directory_that_holds_a_run_is_not_touched(tmp_path):
    run_config(parse(QUICK), out=tmp_path / "run")
    before = (tmp_path / "run" / "rounds.jsonl").read_bytes()
    with pytest.raises(fedloom.ConfigError, match="already holds a run"):
        run_config(parse(QUICK), out=tmp_path / "run")
    assert (tmp_path / "run" / "rounds.jsonl").read_bytes() == before
    run_config(parse({**QUICK, "rounds": 1}), out=tmp_path / "run", fresh=True)
    assert len(strip(tmp_path / "run")) == 2


def test_a_directory_of_something_else_is_not_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(fedloom.ConfigError, match="holds no run"):
        run_config(parse(QUICK), out=tmp_path, fresh=True)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_a_directory_without_a_run_cannot_be_resumed(tmp_path):
    with pytest.raises(fedloom.DataError, match="holds no run"):
        resume(tmp_path)


@pytest.mark.slow
def test_chunk_sizes_agree_in_both_precisions():
    for dtype, tolerance in (("float32", 1e-4), ("float64", 1e-10)):
        thetas = []
        for chunk in (1, 7, 20):
            engine = {"dtype": dtype, "chunk": chunk, "compile": "off"}
            tables = {"rounds": 3, "algorithm": {"name": "ditto"}, "engine": engine}
            result = run_config(parse(tables))
            thetas.append(torch.stack([flat(result.model(c)) for c in range(20)]))
        for theta in thetas[1:]:
            gap = (theta - thetas[0]).norm() / thetas[0].norm()
            assert gap < tolerance


def test_the_same_seed_gives_the_same_bits_twice():
    tables = {"rounds": 3, "algorithm": {"name": "ditto"}}
    first, second = run_config(parse(tables)), run_config(parse(tables))
    for client in range(20):
        assert torch.equal(flat(first.model(client)), flat(second.model(client)))


def test_clients_without_test_samples_or_with_one_class_train_and_are_kept_apart():
    x = np.random.default_rng(0).normal(size=(13, 4))
    y = [0] * 4 + [1] * 8 + [1]
    clients = fedloom.federation(
        x, y, partition=fedloom.Given(members=(range4(0), range4(4), range4(8), (12,)))
    )
    assert clients.test.sizes.tolist() == [1, 1, 1, 0]
    result = fedloom.run("fedavg", "mlr", clients, rounds=2)
    scores = result.scores()
    assert np.isfinite(scores[:3]).all()
    assert np.isnan(scores[3])
    shown = {row["kind"]: row["mean"] for row in result.table()}
    assert shown["personal"] == pytest.approx(scores[:3].mean())


def range4(start):
    return tuple(range(start, start + 4))


def test_over_clients_that_share_out_all_classes_the_mean_is_that_of_all_tests():
    """As pFedVEM scores its shared model: on the complete test set."""
    rng = np.random.default_rng(2)
    y = np.tile(np.arange(4), 30)
    x = np.eye(4)[y] + rng.normal(size=(120, 4))
    dataset = replace(fedloom.from_arrays(x, y), fixed_test=np.arange(120) >= 80)
    clients = fedloom.divide(
        dataset,
        fedloom.Slices(clients=6, classes=2),
        fedloom.Split(fixed=True, shared=True),
        seed=0,
    )
    assert clients.test.sizes.tolist() == [20] * 6
    result = fedloom.run("fedavg", "mlr", clients, rounds=3)
    tests = torch.from_numpy(x[80:]).float()
    right = result.shared_model()(tests).argmax(1).numpy() == y[80:]
    assert 0.0 < right.mean() < 1.0
    assert result.scores("shared").mean() == pytest.approx(right.mean(), abs=1e-12)


def test_a_manifest_says_what_the_methods_own_columns_mean(tmp_path):
    tables = {**QUICK, "rounds": 1, "algorithm": {"name": "fedacs"}}
    run_config(parse(tables), out=tmp_path / "r")
    records = RunDirectory(tmp_path / "r").read_manifest()["records"]
    assert "do not collaborate" in records["weights"]
    assert all("\n" not in text for text in records.values())


FAULTY = {
    **QUICK,
    "rounds": 4,
    "checkpoint_every": 2,
    "algorithm": {"name": "scaffold"},
    "faults": {"absent": 0.2, "lost": 0.3},
    "engine": {"compile": "off", "device": "cpu"},
}


def test_faults_are_simulated_counted_and_resumed(tmp_path):
    straight = run_config(parse(FAULTY), out=tmp_path / "straight")
    rows = straight.history.rounds[1:]
    assert all(row.participants + row.missing == 6 for row in rows)
    assert sum(row.missing for row in rows) > 0
    log = read_table(tmp_path / "straight" / "client_log.arrows").to_pydict()
    assert len(log["client"]) == sum(row.participants for row in rows)
    half = tmp_path / "half"
    run_config(parse(FAULTY), out=half)
    directory = RunDirectory(half)
    directory.checkpoint.with_stem("checkpoint-before").replace(directory.checkpoint)
    resumed = resume(half)
    for client in range(6):
        assert torch.equal(flat(resumed.model(client)), flat(straight.model(client)))
    plain = run_config(parse({k: v for k, v in FAULTY.items() if k != "faults"}))
    assert not torch.equal(flat(plain.model(0)), flat(straight.model(0)))
    assert sum(row.missing for row in plain.history.rounds) == 0


def test_faults_from_python(clients):
    result = fedloom.run(
        "ditto", Small, clients, rounds=6, faults=fedloom.Faults(absent=0.4)
    )
    assert {row.missing for row in result.history.rounds[1:]} - {0}
    with pytest.raises(fedloom.ConfigError, match="absent must be"):
        fedloom.Faults(absent=1.5)
    with pytest.raises(fedloom.ConfigError, match=r"expected fedloom\.Faults"):
        fedloom.run("ditto", Small, clients, rounds=1, faults={"lost": 0.1})
    nobody = fedloom.run(
        "ditto", Small, clients, rounds=1, faults=fedloom.Faults(absent=1.0)
    )
    assert nobody.history.rounds[1].train_loss is None


def test_every_exchange_of_a_round_is_recorded(tmp_path):
    tables = {
        **QUICK,
        "rounds": 2,
        "algorithm": {"name": "pfedmt", "team_iterations": 3, "steps": 2},
    }
    run_config(parse(tables), out=tmp_path / "run")
    log = read_table(tmp_path / "run" / "client_log.arrows").to_pydict()
    places = sorted(set(zip(log["round"], log["exchange"], strict=True)))
    assert places == [(r, e) for r in (1, 2) for e in (0, 1, 2)]
    assert len(log["client"]) == 2 * 3 * 6
    assert min(log["gradients"]) > 0


def test_a_server_that_cannot_fit_is_refused_before_it_is_built(clients, monkeypatch):
    monkeypatch.setattr("fedloom.plan.memory_bytes", lambda device: 100)
    with pytest.raises(fedloom.ConfigError, match=r"fedacs: a round of .* would take"):
        fedloom.run("fedacs", Small, clients, rounds=1)


def test_only_the_clients_of_a_fixed_sample_are_scored_if_so_asked(tmp_path):
    tables = {**QUICK, "evaluate_clients": 3, "evaluate_every": 1}
    result = run_config(parse(tables), out=tmp_path / "run")
    scored = result._simulation.scored.tolist()
    assert len(scored) == 3
    scores = result.scores()
    assert np.flatnonzero(np.isfinite(scores)).tolist() == scored
    everybody = run_config(parse(QUICK)).scores()
    assert scores[scored].tolist() == everybody[scored].tolist()
    assert "of 3 sampled clients" in str(result.table())
    table = read_table(tmp_path / "run" / "clients.arrows")
    assert sorted(set(table["client"].to_pylist())) == scored
    outcomes = RunDirectory.open(tmp_path / "run").read_outcomes()
    assert sorted(set(outcomes.parts["test"].clients.tolist())) == scored
    again = fedloom.load(tmp_path / "run")
    assert np.array_equal(again.scores(), scores, equal_nan=True)
    assert again.export(tmp_path / "models").is_dir()
    page = fedloom.report(tmp_path / "run").read_text()
    assert "Scores are of 3 sampled clients of 6" in page
    assert len((tmp_path / "run/report-clients.csv").read_text().splitlines()) == 4


def test_the_start_is_scored_only_if_so_asked():
    rows = run_config(parse({**QUICK, "rounds": 1})).history.rounds
    assert [bool(row.scores) for row in rows] == [False, True]
    tables = {**QUICK, "rounds": 1, "evaluate_start": True}
    rows = run_config(parse(tables)).history.rounds
    assert [bool(row.scores) for row in rows] == [True, True]
