"""Settings files: strict, with answers that help."""

from pathlib import Path

import pytest

from fedloom.comparison import parse_comparison
from fedloom.config import override, parse, read_toml, to_tables, to_toml
from fedloom.core.errors import ConfigError, DataError
from fedloom.core.scaling import in_shape
from fedloom.core.task import Task
from fedloom.data import whereabouts
from fedloom.engine.probe import probe
from fedloom.plan import make_clients
from fedloom.runs import run_config

FOLDER = Path(__file__).parents[2] / "configs"
CONFIGS = sorted(FOLDER.glob("*.toml"))
PAPERS = sorted((FOLDER / "papers").glob("*.toml"))
COMPARISONS = sorted((FOLDER / "defaults").glob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS + PAPERS, ids=lambda p: p.stem)
def test_every_config_in_the_repository_loads_and_survives_writing(path, tmp_path):
    config = parse(read_toml(path), str(path))
    copy = tmp_path / "copy.toml"
    copy.write_text(to_toml(to_tables(config)))
    assert parse(read_toml(copy)) == config


@pytest.mark.parametrize("path", PAPERS, ids=lambda p: p.stem)
def test_papers_clip_nothing(path):
    assert parse(read_toml(path), str(path)).algorithm.clip is None


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda p: p.stem)
def test_every_comparison_in_the_repository_loads(path):
    assert parse_comparison(read_toml(path), str(path)).arms


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_config_in_the_repository_runs(path):
    tables = read_toml(path) | {"rounds": 1}
    assert run_config(parse(tables, str(path))).table().rows


@pytest.mark.slow
@pytest.mark.parametrize("path", PAPERS, ids=lambda p: p.stem)
def test_every_papers_setting_divides_its_data(path):
    config = parse(read_toml(path), str(path))
    if whereabouts(read_toml(path)["data"]["name"]) == "not found":
        pytest.skip("the data are not on this machine (FEDLOOM_DATA)")
    try:
        _, clients = make_clients(config)
    except DataError as error:
        if "-subset" not in str(error):
            raise
        pytest.skip(f"the data on this machine are a sample: {error}")
    expected = getattr(config.partition, "clients", clients.count)
    assert clients.count == expected
    assert clients.test.sizes.min() >= 1
    data = clients.dataset
    if not hasattr(config.model, "build_for_tokens"):
        module = config.model.build(data.input_shape, data.outputs)
        shift, scale = (in_shape(n, data.input_shape) for n in (data.shift, data.scale))
        probe(Task(module, shift=shift, scale=scale), data, is_woven=True)


@pytest.mark.parametrize(
    "name",
    [
        "consecutive",
        "dirichlet",
        "drawn-sizes",
        "iid",
        "label-skew",
        "power-law",
        "slices",
    ],
)
def test_every_partition_works_by_its_name_alone(name):
    config = parse({"rounds": 1, "partition": {"name": name}, "model": {"name": "mlr"}})
    assert run_config(config).federation.count == 20


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"algorithm": {"name": "dito"}},
            "unknown method 'dito'. Did you mean 'ditto'",
        ),
        ({"algorithm": {"epoch": 2}}, "unknown key 'epoch'. Did you mean 'epochs'"),
        ({"algorithm": {"epochs": 1.5}}, "epochs must be a whole number at least 1"),
        ({"algorithm": {"epochs": True}}, "epochs must be a whole number"),
        ({"algorithm": {"lr": -0.1}}, "lr must be a number above 0, found -0.1"),
        ({"algorithm": {"lr": float("nan")}}, "lr must be a number above 0, found nan"),
        ({"algorithm": {"lr": "0.1"}}, "lr must be a number above 0, found '0.1'"),
        ({"rounds": 0}, "rounds must be a whole number at least 1"),
        ({"round": 3}, "unknown key 'round'. Did you mean 'rounds'"),
        ({"algoritm": {}}, "unknown section 'algoritm'. Did you mean 'algorithm'"),
        ({"algorithm": "ditto"}, r"\[algorithm\] is a section"),
        (
            {"cohort": {"rate": 0.5}},
            r"file.toml: \[cohort\] is called \[sampling\] now",
        ),
        ({"partition": {"clients": 3}}, "name must be given"),
        ({"sampling": {"rate": 0}}, "rate must be a number above 0 and at most 1"),
        ({"engine": {"device": "warp"}}, "device must be auto, cpu or cuda"),
    ],
)
def test_a_wrong_setting_says_where_and_what_was_expected(tables, message):
    with pytest.raises(ConfigError, match=message):
        parse(tables, "file.toml").engine.torch_device()


def test_more_classes_per_client_than_exist_is_refused():
    tables = {"partition": {"name": "label-skew", "clients": 5, "classes": 11}}
    with pytest.raises(ConfigError, match="11"):
        run_config(parse(tables))


def test_an_override_is_read_as_toml_or_taken_as_text():
    tables = {}
    for assignment in ("algorithm.lr=0.5", "algorithm.name=ditto", "rounds=3"):
        override(tables, assignment)
    assert tables == {"algorithm": {"lr": 0.5, "name": "ditto"}, "rounds": 3}


def test_none_unsets_what_has_a_default_and_survives_writing(tmp_path):
    config = parse({"algorithm": {"name": "pfedmt", "steps": "none", "epochs": 2}})
    assert config.algorithm.steps is None
    assert config.algorithm.phases[0].epochs == 2
    copy = tmp_path / "copy.toml"
    copy.write_text(to_toml(to_tables(config)))
    assert parse(read_toml(copy)) == config
    with pytest.raises(ConfigError, match="lr must be a number"):
        parse({"algorithm": {"lr": "none"}})


def test_tables_in_tables_and_odd_text_survive_writing(tmp_path):
    methods = {'a.b = "c"': {"name": "ditto", "lr": 1e-05, "steps": [1, 2]}}
    tables = {"path": 'C:\\x "y"\n\tä', "methods": methods, "seeds": (0, 1)}
    copy = tmp_path / "copy.toml"
    copy.write_text(to_toml(tables), encoding="utf-8")
    assert read_toml(copy) == tables | {"seeds": [0, 1]}


def test_an_override_without_a_value_is_refused():
    with pytest.raises(ConfigError, match=r"section\.key=value"):
        override({}, "algorithm.lr")


def test_a_file_that_is_not_there_or_not_toml_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.toml: cannot be read"):
        read_toml(tmp_path / "absent.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("rounds = = 3")
    with pytest.raises(ConfigError, match="not valid TOML"):
        read_toml(bad)


def table(path, **columns):
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines))
    return {"name": "file", "path": str(path)}


def test_a_table_without_clients_is_divided_by_a_named_partition_only(tmp_path):
    data = table(tmp_path / "t.csv", a=range(8), y=[0, 1] * 4)
    with pytest.raises(ConfigError, match=r"whose each sample is.*data\.client=COLUMN"):
        make_clients(parse({"data": data}))
    config = {"data": data, "partition": {"name": "iid", "clients": 2}}
    _, clients = make_clients(parse(config))
    assert clients.count == 2
    assert "2 clients from partition iid;" in clients.describe()


def test_columns_that_the_split_names_are_no_features(tmp_path):
    data = table(
        tmp_path / "t.csv",
        a=range(8),
        day=[8, 7, 6, 5, 4, 3, 2, 1],
        visit=["u", "u", "v", "v"] * 2,
        part=["train", "train", "test", "train"] * 2,
        who=[0] * 4 + [1] * 4,
        y=[0, 1] * 4,
    )
    data |= {"client": "who", "drop": ["part", "visit"]}
    _, clients = make_clients(parse({"data": data, "split": {"time": "day"}}))
    assert clients.dataset.features == ("a",)
    assert clients.test.indices.tolist() == [0, 4]
    data |= {"drop": ["day", "visit"]}
    split = {"test_column": "part"}
    _, clients = make_clients(parse({"data": data, "split": split}))
    assert clients.test.indices.tolist() == [2, 6]
    data |= {"drop": ["part", "day"]}
    split = {"group": "visit", "test": 0.5}
    _, clients = make_clients(parse({"data": data, "split": split}))
    assert [part[1] - part[0] for part in clients.test] == [1, 1]
    with pytest.raises(DataError, match="unknown column 'days'"):
        make_clients(parse({"data": data, "split": {"time": "days"}}))
    digits = {"split": {"time": "day"}}
    with pytest.raises(DataError, match=r"digits: split\.time names 'day'.*no columns"):
        make_clients(parse(digits))


def test_folds_of_a_run_file_fit_together(tmp_path):
    split = {"folds": 3, "validation": 0.2}
    tested = []
    for fold in range(3):
        _, clients = make_clients(parse({"split": split | {"fold": fold}}))
        tested += clients.test.indices.tolist()
    assert sorted(tested) == sorted(
        i for part in clients.parts for i in part.indices.tolist()
    )
