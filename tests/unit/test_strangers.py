"""Files that are not ours are never touched, and strangers are in nobody's way."""

from __future__ import annotations

import gc
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from survivors import (
    SMALL,
    TWO_BY_TWO,
    Death,
    Killed,
    assert_same,
    back_at_round_2,
)

import fedloom
from fedloom.commands.report import write_and_show
from fedloom.comparison import load_comparison, parse_comparison, run_comparison
from fedloom.comparison import train as comparison_train
from fedloom.config import parse, to_toml
from fedloom.core.digests import write_checked_json
from fedloom.reports import write_report
from fedloom.results.directory import RunDirectory
from fedloom.results.lock import hold
from fedloom.results.scores import Scores
from fedloom.runs import load, resume, run_config
from fedloom.trackers import Csv

pytestmark = pytest.mark.usefixtures("hasty")


def put(folder: Path, *names: str) -> dict[Path, str]:
    """Files of somebody else; gives what is in each."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"precious {name}")
    return {folder / name: f"precious {name}" for name in names}


def assert_untouched(files: Mapping[Path, str]) -> None:
    assert {path: path.read_text() for path in files} == files


@pytest.mark.parametrize(
    "manifest",
    [
        '{"name": "web app", "icons": []}',
        '{"fedloom": "0.1.0", "algorithm": "ditto", "seed": 0}',
        '{"format": "fedloom-run-2"}',
        "[]",
        "not JSON",
    ],
)
def test_a_folder_with_any_manifest_is_not_a_run(manifest: str, tmp_path: Path) -> None:
    files = put(
        tmp_path, "checkpoint-best.pt", "notes/a.md", "config.toml", "clients/1"
    )
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(fedloom.ConfigError, match=r"no run of this version wrote"):
        run_config(parse(SMALL), out=tmp_path, fresh=True)
    assert_untouched(files)
    assert (tmp_path / "manifest.json").read_text() == manifest


def test_a_lock_alone_does_not_make_files_ours(tmp_path: Path) -> None:
    files = put(tmp_path, "thesis.tex", "config.toml")
    (tmp_path / ".run.lock").write_text("1 somewhere\n")
    with pytest.raises(fedloom.ConfigError, match=r"holds no run \(config\.toml\)"):
        run_config(parse(SMALL), out=tmp_path, fresh=True)
    assert_untouched(files)


def test_a_fresh_run_removes_the_files_of_the_old_one_alone(
    undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(undisturbed, out)
    files = put(
        out,
        "checkpoint-best.safetensors",
        "checkpoints.txt",
        "notes/mine.md",
        "client_log/000001.parquet",
        "outcomes/round-1.npz",
        "outcomes/mine.npz",
        "tensorboard/thoughts.txt",
        ".fedloom-0123456789abcdeg.part/mine",
        ".other.part",
    )
    run_config(parse(SMALL), out=out, fresh=True)
    assert_untouched(files)
    for path in files:
        path.unlink()
    for name in (
        "notes",
        "client_log",
        "tensorboard",
        ".fedloom-0123456789abcdeg.part",
    ):
        (out / name).rmdir()
    assert_same(out, undisturbed)


def test_files_that_no_part_of_the_run_wrote_are_the_users_own(
    undisturbed: Path, tmp_path: Path
) -> None:
    """Under a tracker's names in a run without one, and of rounds it does not have."""
    out = tmp_path / "run"
    shutil.copytree(undisturbed, out)
    files = put(
        out,
        "rounds.csv",
        "mlflow.json",
        "outcomes/round-99999.npz",
        "tensorboard/events.out.tfevents.mine",
        "tensorboard/events.out.tfevents.1700000000.host.1.0",
    )
    assert RunDirectory(out).outcome_rounds() == [3]
    resume(out)
    assert_untouched(files)
    run_config(parse(SMALL), out=out, fresh=True)
    assert_untouched(files)
    # Nor does a tracker take them for its own, now or the next time.
    for _ in range(2):
        config = parse({**SMALL, "rounds": 1})
        run_config(config, out=out, fresh=True, track=[Csv()])
        assert_untouched(files)


def test_files_of_our_names_that_no_run_wrote_are_the_users_own(
    undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(undisturbed, out)
    names = ["failure.json", "remarks.json", "federation.json"]
    files = put(out, *names, "outcomes/round-00009.npz")
    with RunDirectory.create(out, fresh=True) as directory:
        directory.write_remarks([])
        assert_untouched(files)


def test_settings_of_the_users_own_beside_a_lock_are_not_a_run(tmp_path: Path) -> None:
    own = tmp_path / "config.toml"
    own.write_text("# My own remarks.\nrounds = 3\n")
    (tmp_path / ".run.lock").touch()
    with (
        pytest.raises(fedloom.ConfigError, match=r"holds no run \(config\.toml\)"),
        RunDirectory.create(tmp_path),
    ):
        pass
    assert own.read_text().startswith("# My own")
    own.write_text(to_toml({"rounds": 3}))  # as a run leaves it on a full disk
    with RunDirectory.create(tmp_path):
        assert not own.exists()


@pytest.mark.parametrize("after", [0, 8])
def test_a_stranger_does_not_block_a_run_that_was_killed_as_it_began_anew(
    after: int, undisturbed: Path, tmp_path: Path, death: Death
) -> None:
    out = tmp_path / "run"
    shutil.copytree(undisturbed, out)
    files = put(out, ".DS_Store", "mine.txt", "outcomes/mine.npz")
    with pytest.raises(Killed), death.comes(out, "", after):
        run_config(parse(SMALL), out=out, fresh=True)
    assert_untouched(files)
    run_config(parse(SMALL), out=out, fresh=True)
    assert_untouched(files)
    for path in files:
        path.unlink()
    assert_same(out, undisturbed)


def test_strangers_do_not_block_a_resume(undisturbed: Path, tmp_path: Path) -> None:
    out = back_at_round_2(undisturbed, tmp_path / "run")
    names = [
        ".DS_Store",
        "outcomes/.DS_Store",
        "outcomes/round-x.npz",
        "notes/Thumbs.db",
    ]
    files = put(out, *names)
    resume(out)
    assert_untouched(files)


@pytest.mark.parametrize("title", ["..", ".", "../x", "a/b", ".a", "a.", " a", "a\n"])
def test_a_title_that_leads_elsewhere_is_refused(title: str) -> None:
    with pytest.raises(fedloom.ConfigError, match="becomes the name of a folder"):
        parse_comparison({"methods": {title: {"name": "fedavg"}}})


@pytest.mark.parametrize("titles", [["Ditto", "ditto"], ["x" * 101], ["seed-0"]])
def test_titles_have_a_folder_of_their_own_on_every_system(titles: list[str]) -> None:
    with pytest.raises(fedloom.ConfigError, match="folder"):
        parse_comparison({"methods": {title: {"name": "ditto"} for title in titles}})


@pytest.mark.parametrize(
    "title",
    [
        "compare.toml",
        "report.html",
        "report-2.md",
        "Alone",
        "yardsticks",
        "con",
        "Aux.1",
    ],
)
def test_a_title_that_is_taken_is_refused_early(title: str) -> None:
    with pytest.raises(fedloom.ConfigError, match="something else under that name"):
        parse_comparison({"methods": {title: {"name": "ditto"}}})
    parse_comparison({"methods": {f"my {title}": {"name": "ditto"}}})


def test_a_lock_that_is_a_link_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / ".run.lock").symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(fedloom.ConfigError, match=r"\.run\.lock: .*found a link"),
        hold(tmp_path / ".run.lock"),
    ):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_compare_toml_of_the_users_own_is_not_taken_for_a_comparison(
    tmp_path: Path,
) -> None:
    files = put(tmp_path, "fedavg/seed-0/config.toml", "fedavg/seed-0/.run.lock")
    own = to_toml(TWO_BY_TWO)
    (tmp_path / "compare.toml").write_text(own)
    with pytest.raises(fedloom.ConfigError, match=r"compare\.toml that no comparison"):
        run_comparison(parse_comparison(TWO_BY_TWO), tmp_path, fresh=True, jobs=1)
    assert_untouched(files)
    assert (tmp_path / "compare.toml").read_text() == own


def test_a_fresh_comparison_removes_what_the_old_one_lists_alone(
    compared: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    shutil.copytree(compared, out)
    shutil.copytree(undisturbed, out / "mine" / "seed-0")
    before = (out / "mine" / "seed-0" / "manifest.json").read_bytes()
    mine = "yardsticks/mine/seed-0.npz"
    files = put(out, "fedavg/notes.md", "fedavg/seed-7/config.toml", "thesis.tex", mine)
    one = parse_comparison({**TWO_BY_TWO, "methods": ["fedavg"], "seeds": [0]})

    def stop(*_: Any) -> None:
        raise InterruptedError

    monkeypatch.setattr(comparison_train, "_together", stop)
    with pytest.raises(InterruptedError):
        run_comparison(one, out, fresh=True, jobs=1)
    assert_untouched(files)
    assert (out / "mine" / "seed-0" / "manifest.json").read_bytes() == before
    assert not list(out.glob("ditto/*/*.safetensors"))
    assert load_comparison(out).arms.keys() == {"fedavg"}


def test_a_damaged_split_of_a_comparison_is_named_before_anything_goes_on(
    compared: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(compared, out)
    split = out / "ditto" / "seed-1" / "split.npz"
    content = bytearray(split.read_bytes())
    content[200] ^= 1
    split.write_bytes(content)
    for path in split.parent.glob("checkpoint*"):
        path.unlink()  # so that there is something to go on with
    with pytest.raises(fedloom.MessageError, match=r"seed-1.split\.npz: .*damaged"):
        run_comparison(load_comparison(out), out, jobs=1)


def test_strangers_do_not_block_a_fresh_comparison(
    compared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is stopped before its runs have begun; what is left goes on."""
    out = tmp_path / "out"
    shutil.copytree(compared, out)
    files = put(out, "fedavg/seed-0/.DS_Store", "fedavg/seed-1/mine.txt")
    changes: dict[str, Any] = {"methods": ["fedavg"], "rounds": 1}
    comparison = parse_comparison({**TWO_BY_TWO, **changes})

    def stop(*_: Any) -> None:
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(comparison_train, "_together", stop)
        with pytest.raises(InterruptedError):
            run_comparison(comparison, out, fresh=True, jobs=1)
    assert not list(out.glob("*/*/manifest.json"))
    run_comparison(comparison, out, jobs=1)
    assert len(list(out.glob("*/*/manifest.json"))) > 1
    assert_untouched(files)


@pytest.mark.parametrize("name", ["ditto/seed-1/manifest.json", "prox"])
def test_what_blocks_a_fresh_comparison_is_seen_before_anything_is_removed(
    name: str, compared: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(compared, out)
    put(out, name, "yardsticks/mine/seed-0.npz")
    before = {path for path in out.rglob("*") if not path.name.endswith(".lock")}
    methods = {"fedavg": {}, "ditto": {}, "prox": {"name": "fedprox"}}
    comparison = parse_comparison({**TWO_BY_TWO, "methods": methods})
    with pytest.raises(fedloom.ConfigError, match=r"damaged|found a file"):
        run_comparison(comparison, out, fresh=True, jobs=1)
    after = {path for path in out.rglob("*") if not path.name.endswith(".lock")}
    assert after == before


def test_what_a_killed_comparison_was_writing_is_removed(
    compared: Path, tmp_path: Path
) -> None:
    """Also beside runs that are finished."""
    out = tmp_path / "out"
    shutil.copytree(compared, out)
    part = ".fedloom-0123456789abcdef.part"
    for folder in ("", "yardsticks", "yardsticks/constant", "ditto/seed-1/outcomes"):
        put(out / folder / part, "half")
    files = put(out, "yardsticks/constant/mine.npz")
    run_comparison(load_comparison(out), out, jobs=1)
    assert not list(out.rglob(part))
    assert_untouched(files)


def test_the_report_of_a_comparison_is_made_under_its_lock(
    compared: Path, tmp_path: Path
) -> None:
    out, reported = tmp_path / "out", []
    shutil.copytree(compared, out)

    def report(path: Path) -> None:
        with (
            pytest.raises(fedloom.ConfigError, match="is writing to it"),
            hold(path / ".compare.lock"),
        ):
            pass
        reported.append(path)

    run_comparison(load_comparison(out), out, jobs=1, report=report)
    assert reported == [out]


def test_a_report_replaces_only_what_a_report_wrote(
    undisturbed: Path, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    files = put(project, "README.md", "README.csv")
    with pytest.raises(
        fedloom.ConfigError, match=r"README\.(md|csv): is there already"
    ):
        fedloom.report(undisturbed, project / "README.html")
    assert_untouched(files)
    assert sorted(p.name for p in project.iterdir()) == ["README.csv", "README.md"]
    page = fedloom.report(undisturbed, project / "report.html")
    fedloom.report(undisturbed, page)
    (project / "report.md").write_text("My own words.")
    with pytest.raises(fedloom.ConfigError, match=r"report\.md: .*changed since"):
        fedloom.report(undisturbed, page)
    assert (project / "report.md").read_text() == "My own words."
    # Nor one that is named.
    with pytest.raises(fedloom.ConfigError, match=r"README\.md: is there already"):
        fedloom.report(undisturbed, project / "README.md", format_="md")
    assert_untouched(files)


@pytest.mark.parametrize(
    ("name", "format_", "advice"),
    [
        ("manifest.json", "html", r"--out \S*manifest\.html \(out"),
        ("x.md", "html", r"--out \S*x\.html, or --format md"),
        ("x", "latex", r"--out \S*x\.tex \(out"),
    ],
)
def test_a_report_has_the_ending_of_its_format(
    name: str, format_: str, advice: str, undisturbed: Path, tmp_path: Path
) -> None:
    files = put(tmp_path, "manifest.json")
    with pytest.raises(fedloom.ConfigError, match=advice):
        fedloom.report(undisturbed, tmp_path / name, format_=format_)
    assert_untouched(files)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_in_the_way_of_a_report_is_seen_before_anything_is_written(
    undisturbed: Path, tmp_path: Path
) -> None:
    (tmp_path / "report.md").mkdir()
    with pytest.raises(fedloom.ConfigError, match=r"report\.md: is there already"):
        fedloom.report(undisturbed, tmp_path / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]


@pytest.mark.parametrize("files", [[1], "x", {"r.md": [[1]]}, {"r.md": 5}, None])
def test_an_odd_list_of_reports_makes_no_file_a_reports(
    files: Any, undisturbed: Path, tmp_path: Path
) -> None:
    mine = put(tmp_path, "r.md")
    listed = {"format": "fedloom-report-1", "files": files}
    write_checked_json(tmp_path / ".fedloom-report.json", listed)
    with pytest.raises(fedloom.ConfigError, match=r"r\.md: is there already"):
        fedloom.report(undisturbed, tmp_path / "r.md", format_="md")
    assert_untouched(mine)


def test_a_report_beside_an_edited_one_has_another_name(
    undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a comparison that is resumed, where nobody can say where it goes."""
    out = tmp_path / "run"
    shutil.copytree(undisturbed, out)
    fedloom.report(out)
    (out / "report.md").write_text("My own words.")
    for _ in range(2):  # the second time it replaces what the first wrote
        _, written = write_report([out], may_rename=True)
        assert [path.name for path in written[:2]] == ["report-2.html", "report-2.md"]
    write_and_show([out], may_rename=True)
    said = " ".join(capsys.readouterr().out.split())
    assert "report-2.html Files under the names of the report were changed" in said
    assert (out / "report.md").read_text() == "My own words."


def test_a_default_name_is_nobodys_permission(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = put(tmp_path, "report.md")
    with pytest.raises(fedloom.ConfigError, match=r"report\.md: is there already"):
        fedloom.report([undisturbed, undisturbed], format_="md")
    assert_untouched(files)


@pytest.fixture(scope="module")
def named_alike() -> fedloom.Result:
    """Clients whose names differ only in what a folder's name cannot hold."""
    names = ["a/b", "a\\b", "a:b", "A-b", "é" * 300, "x" * 300, "..", "CON", "0"]
    draw = np.random.default_rng(0)
    who = np.repeat(np.array(names), 6)
    x = draw.normal(size=(len(who), 2)).astype("float32")
    clients = fedloom.federation(x, np.arange(len(who)) % 2, clients=who, test=0.5)
    return fedloom.run("fedavg", "mlr", clients, rounds=1)


def test_every_client_has_a_folder_of_its_own(
    named_alike: fedloom.Result, tmp_path: Path
) -> None:
    out = named_alike.export(tmp_path / "e")
    folders = [path.name for path in out.iterdir() if path.is_dir()]
    assert len({name.lower() for name in folders}) == 9
    assert max(len(name) for name in folders) < 60
    for n, name in enumerate(named_alike.federation.names):
        (folder,) = (f for f in folders if f.split("-")[1] == str(n))
        assert json.dumps(name, ensure_ascii=False)[1:-1][:9] in (
            out / folder / "model.toml"
        ).read_text(encoding="utf-8")
    modes = {path.stat().st_mode & 0o777 for path in out.rglob("*") if path.is_file()}
    assert len(modes) == 1


def test_an_export_leaves_its_neighbours_alone(
    named_alike: fedloom.Result, tmp_path: Path
) -> None:
    names = ["home.old", "home.part", ".home.old", ".home.part"]
    files = put(tmp_path, *(f"{name}/letter" for name in names))
    named_alike.export(tmp_path / "home", clients=[0])
    named_alike.export(tmp_path / "home", clients=[1], fresh=True)
    assert_untouched(files)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*names, "home"])


def test_two_exports_do_not_write_to_one_folder(
    named_alike: fedloom.Result, tmp_path: Path
) -> None:
    """The second is told of the first, and changes nothing; nobody leaves a lock."""
    out = named_alike.export(tmp_path / "home", clients=[0])
    before = {path: path.read_bytes() for path in out.iterdir()}
    with (
        hold(out / ".fedloom-export.lock", stays=False),
        pytest.raises(fedloom.ConfigError, match="is writing to it"),
    ):
        named_alike.export(out, clients=[1], fresh=True)
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    put(out, ".fedloom-export.lock")  # as a killed process leaves it
    named_alike.export(out, clients=[1], fresh=True)
    assert {path.name for path in out.iterdir()} == {path.name for path in before}


def test_an_export_keeps_an_empty_folder_that_is_there(
    named_alike: fedloom.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be where a shell stands, a mount point, or closed to others."""
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o700)
    before = home.stat()
    monkeypatch.chdir(home)
    for fresh in (False, True):
        named_alike.export(".", clients=[0, 1], fresh=fresh)
        assert (home.stat().st_ino, home.stat().st_mode) == (
            before.st_ino,
            before.st_mode,
        )
        assert "export.json" in os.listdir()
        assert not [name for name in os.listdir() if name.startswith(".")]
        modes = {path.stat().st_mode & 0o077 for path in home.rglob("*")}
        assert modes == {0}


@pytest.mark.slow
def test_an_export_that_is_killed_loses_nothing(
    named_alike: fedloom.Result, tmp_path: Path, death: Death
) -> None:
    """The next call puts back what was there, or ends what was as good as written."""

    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    out = named_alike.export(tmp_path / "home", clients=[0])
    before = content()
    kills, is_killed = 0, True
    while is_killed and content() == before:
        is_killed = False
        try:
            with death.comes(out, "", kills, is_hidden=True):
                named_alike.export(out, clients=[1, 2], fresh=True)
        except Killed:
            is_killed = True
            kills += 2
        with pytest.raises(fedloom.ConfigError, match="already holds exported models"):
            named_alike.export(out, clients=[4])
    assert kills > 10
    names = sorted(name[:8] for name in os.listdir(out))
    assert names == ["client-1", "client-2", "export.j", "models.c"]


def test_an_export_half_written_into_an_empty_folder_is_removed(
    named_alike: fedloom.Result, tmp_path: Path, death: Death
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with pytest.raises(Killed), death.comes(home, "export.json"):
        named_alike.export(home, clients=[0, 1])
    assert "models.csv" in os.listdir(home)
    named_alike.export(home, clients=[2])
    names = ["README.md", "export.json", "model.safetensors", "model.toml"]
    assert sorted(os.listdir(home)) == names


@pytest.mark.parametrize("what", ["changed", "unlisted", "no list", "lying list"])
def test_an_export_replaces_only_what_an_export_wrote(
    what: str, named_alike: fedloom.Result, tmp_path: Path
) -> None:
    out = named_alike.export(tmp_path / "home", clients=[0, 1])
    precious = put(tmp_path, "precious.txt")
    if what == "changed":
        (out / "models.csv").write_text("my own remarks")
    elif what == "unlisted":
        (out / "client-0-0").mkdir()
    elif what == "no list":
        (out / "export.json").unlink()
    else:
        listed = json.loads((out / "export.json").read_text())
        listed["files"]["../precious.txt"] = [1, "0"]
        (out / "export.json").write_text(json.dumps(listed))
    before = sorted(out.rglob("*"))
    with pytest.raises(fedloom.ConfigError, match=r"home: "):
        named_alike.export(out, clients=[2], fresh=True)
    assert sorted(out.rglob("*")) == before
    assert_untouched(precious)


def test_all_files_of_a_run_have_the_same_mode(undisturbed: Path) -> None:
    files = [path for path in undisturbed.rglob("*") if path.is_file()]
    modes = {p.stat().st_mode & 0o777 for p in files if not p.name.endswith(".lock")}
    assert len(modes) == 1


def test_rounds_add_no_files(undisturbed: Path, tmp_path: Path) -> None:
    run_config(parse({**SMALL, "rounds": 9}), out=tmp_path / "run")
    few, many = (
        sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
        for out in (undisturbed, tmp_path / "run")
    )
    assert len(many) == len(few) < 13
    assert load(tmp_path / "run").history.rounds[-1].round == 9


@pytest.mark.slow
def test_memory_holds_the_scores_of_the_last_round_alone(tmp_path: Path) -> None:
    """Those of every round are on disk, also without a directory."""

    def held() -> int:
        gc.collect()
        return sum(type(value) is Scores for value in gc.get_objects())

    before = held()
    kept = run_config(parse({**SMALL, "rounds": 6}))
    assert held() - before == len(kept.history.last_scores) == 6
    saved = kept.save(tmp_path / "saved")
    run_config(parse({**SMALL, "rounds": 6}), out=tmp_path / "written")
    for name in ("clients.arrows", "client_log.arrows"):
        content = (saved / name).read_bytes()
        assert content == (tmp_path / "written" / name).read_bytes()
