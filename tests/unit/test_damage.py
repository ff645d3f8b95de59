"""Every byte that decides is checked, and damage is named while the rest goes on."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from survivors import SMALL, Listener, assert_same, back_at_round_2, content

import fedloom
from fedloom.config import parse
from fedloom.core.digests import write_checked_json
from fedloom.export.alone import put_together
from fedloom.reports.collect import collect
from fedloom.reports.watch import Watch
from fedloom.results.directory import RunDirectory
from fedloom.results.outcomes import Outcomes, RunOutcomes
from fedloom.results.reader import RunReader
from fedloom.runs import load, resume, run_config
from fedloom.server import checkpoint

pytestmark = pytest.mark.usefixtures("hasty")


def flip(path: Path, place: int, bit: int = 0) -> None:
    """Turn over one bit of a file."""
    changed = bytearray(path.read_bytes())
    changed[place] ^= 1 << bit
    path.write_bytes(changed)


def replace_text(path: Path, old: bytes, new: bytes) -> None:
    text = path.read_bytes()
    assert text.count(old) == 1
    path.write_bytes(text.replace(old, new))


def test_a_flipped_bit_of_the_round_number_gives_no_other_model(
    undisturbed: Path, tmp_path: Path
) -> None:
    out, heard = tmp_path / "run", Listener()
    shutil.copytree(undisturbed, out)
    file = out / "checkpoint.safetensors"
    replace_text(file, rb"\"round\": 3", rb"\"round\": 2")
    resume(out, progress=heard)
    assert "the checksum of its header is wrong" in heard.reason
    assert "The one before it is used" in heard.reason
    assert_same(out, undisturbed)


def test_a_damaged_header_is_never_believed(undisturbed: Path, tmp_path: Path) -> None:
    """One bit of every third byte of the header, each turned over for itself."""
    path = tmp_path / "checkpoint.safetensors"
    sound = (undisturbed / path.name).read_bytes()
    size = 8 + int.from_bytes(sound[:8], "little")
    believed = []
    for place in range(0, size, 3):
        path.write_bytes(sound)
        flip(path, place, place % 7)
        if checkpoint.whole_positions(path):
            believed.append((place, sound[place - 3 : place + 4]))
    # The padding at the end of the header says nothing.
    assert all(around.strip() == b"" or around[3:4] == b" " for _, around in believed)


def test_a_model_that_is_older_than_it_should_be_is_announced(
    undisturbed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "run"
    shutil.copytree(undisturbed, out)
    flip(out / "checkpoint.safetensors", -1)
    with caplog.at_level(logging.WARNING):
        assert load(out).history.rounds[-1].round == 2
    assert "The one before it is used" in caplog.text


@pytest.mark.parametrize(
    "name", ["rounds.jsonl", "client_log.arrows", "clients.arrows"]
)
@pytest.mark.parametrize("damage", ["flipped", "cut short", "gone"])
def test_damaged_rows_are_named_and_nothing_is_changed(
    name: str, damage: str, undisturbed: Path, tmp_path: Path
) -> None:
    out = back_at_round_2(undisturbed, tmp_path / "run")
    file = out / name
    if damage == "flipped":
        flip(file, 100)
    elif damage == "cut short":
        file.write_bytes(file.read_bytes()[:200])
    else:
        file.unlink()
    before = content(out) if name != "rounds.jsonl" else None
    with pytest.raises(fedloom.MessageError, match=rf"{name}: (its|expected|cannot)"):
        resume(out)
    assert before is None or content(out) == before


def test_what_lies_behind_a_checkpoint_may_be_anything(
    undisturbed: Path, tmp_path: Path
) -> None:
    """It is cut off and written again."""
    out = back_at_round_2(undisturbed, tmp_path / "run")
    for name in ("rounds.jsonl", "client_log.arrows", "clients.arrows"):
        flip(out / name, -40)
    resume(out)
    shutil.copy(undisturbed / "checkpoint-before.safetensors", out)
    assert_same(out, undisturbed)


def lying(**changes: Any) -> Callable[[Path], None]:
    """A manifest with a right digest that says what none of ours does."""

    def change(run: Path) -> None:
        manifest = json.loads((run / "manifest.json").read_text())
        del manifest["digest"]
        write_checked_json(run / "manifest.json", manifest | changes)

    return change


def without(key: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        manifest = json.loads((run / "manifest.json").read_text())
        del manifest[key], manifest["digest"]
        write_checked_json(run / "manifest.json", manifest)

    return change


def write(name: str, text: bytes) -> Callable[[Path], None]:
    return lambda run: (run / name).write_bytes(text) and None


MALFORMED: dict[str, Callable[[Path], None]] = {
    "flipped manifest": lambda run: flip(run / "manifest.json", 40),
    "no seed": without("seed"),
    "no rows": without("rows"),
    "seed in words": lying(seed="one"),
    "files of others": lying(rows={"../../../dev/zero": [1, ""]}),
    "no digest": lying(files={"split.npz": 3}),
    "half a manifest": write("manifest.json", b'{"format": "fedl'),
    "a list": write("manifest.json", b"[1]"),
    "old format": write("manifest.json", b'{"fedloom": "0.1.0", "seed": 0}'),
    "no text": write("manifest.json", b"\xff\xfe\x00"),
    "deep": write("manifest.json", b"[" * 100_000),
    "endless config": lying(config={"rounds": float("inf")}),
    "damaged failure": write("failure.json", b'{"why": 1}'),
}


@pytest.mark.parametrize("damage", MALFORMED)
def test_one_malformed_run_silences_no_other(
    damage: str, undisturbed: Path, tmp_path: Path
) -> None:
    for name in ("good", "bad"):
        shutil.copytree(undisturbed, tmp_path / name)
    MALFORMED[damage](tmp_path / "bad")
    state = Watch([tmp_path]).state()
    json.dumps(state, allow_nan=False)
    assert [Path(run["path"]).name for run in state["runs"]] == ["good"]
    assert len(state["problems"]) == 1
    assert "bad" in state["problems"][0]
    collection = collect([tmp_path])
    assert [run.path.name for run in collection.runs.values()] == ["good"]
    assert any("A run is left out" in remark for remark in collection.remarks)
    with pytest.raises(fedloom.FedloomError, match="bad"):
        collect([tmp_path / "bad"])


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b'{"round": "x"}',
        b'{"round": 1, "other": 2}',
        b'{"round": 1, "scores": [1]}',
        b'{"round": 1, "scores": {"personal": {"test": {"accuracy": "x"}}}}',
        b'{"round": 4, "seconds": NaN}',
        b'{"round": 4, "seconds": 1e999}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_a_malformed_row_silences_nothing(
    line: bytes, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(undisturbed, out)
    with (out / "rounds.jsonl").open("ab") as file:
        file.write(line + b"\n")
    state = Watch([tmp_path]).state()
    json.dumps(state, allow_nan=False)
    assert len(state["runs"]) == 1


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("split.npz", b""),
        ("split.npz", None),
        ("clients.arrows", None),
        ("client_log.arrows", None),
        ("outcomes/round-00003.npz", b"PK"),
        ("gain.parquet", b"PAR1, cut sho"),
        ("config.toml", b"rounds = inf"),
        ("config.toml", b"= ="),
        ("config.toml", None),
    ],
)
def test_a_damaged_file_is_named_in_the_report_which_goes_on(
    name: str, damage: bytes | None, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(undisturbed, out)
    if damage is None:
        flip(out / name, 200)
    else:
        (out / name).write_bytes(damage)
    (remark,) = (r for r in collect([out]).remarks if "damaged file" in r)
    assert name in remark
    page = fedloom.report(out, tmp_path / "report.html").read_text()
    assert Path(name).name in page


@pytest.mark.parametrize("has_digest", [True, False])
def test_edited_settings_are_named_and_not_believed(
    has_digest: bool, undisturbed: Path, tmp_path: Path
) -> None:
    """Runs of earlier versions have no digest of them, but the settings themselves."""
    out = tmp_path / "run"
    shutil.copytree(undisturbed, out)
    if not has_digest:
        files = json.loads((out / "manifest.json").read_text())["files"]
        lying(files={k: v for k, v in files.items() if k != "config.toml"})(out)
    assert not RunReader(out).damage
    replace_text(out / "config.toml", b"lr = 0.05", b"lr = 0.09")
    page = fedloom.report(out, tmp_path / "report.html").read_text()
    assert "config.toml: its " in page
    assert "0.09" not in page
    with pytest.raises(fedloom.FedloomError, match=r"config\.toml"):
        resume(out)


@pytest.fixture(scope="module")
def with_gain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("with_gain") / "run"
    run_config(parse({**SMALL, "rounds": 1}), out=out).gain()
    return out


@pytest.mark.parametrize(
    "name", ["outcomes/round-00001.npz", "outcomes/alone.npz", "gain.parquet"]
)
def test_a_flipped_bit_is_named_or_changes_nothing(
    name: str, with_gain: Path, tmp_path: Path
) -> None:
    """Whatever part of an archive or a table it is in, reading it ends in a message."""
    out = tmp_path / "run"
    shutil.copytree(with_gain, out)
    sound = (out / name).read_bytes()
    named = 0
    for place in range(0, len(sound), 1 + len(sound) // 150):
        (out / name).write_bytes(sound)
        flip(out / name, place, place % 8)
        reader = RunReader(out)
        named += Path(name).name in reader.damage
        _ = reader.gain(), reader.outcomes, reader.alone_outcomes
        assert reader.damage.keys() <= {Path(name).name}
    assert named > 30


def test_outcomes_of_other_samples_are_not_put_together(with_gain: Path) -> None:
    own = RunDirectory(with_gain).read_outcomes()
    assert own is not None
    others = {
        part: Outcomes(outcomes.rows + 1, outcomes.clients, outcomes.values)
        for part, outcomes in own.parts.items()
    }
    once = np.ones(4, dtype=np.int64)
    with pytest.raises(fedloom.DataError, match="of other samples"):
        put_together(own, once, once, lambda _: RunOutcomes(others))


def test_a_damaged_split_is_named_by_resume_and_by_export(
    undisturbed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = back_at_round_2(undisturbed, tmp_path / "run")
    flip(out / "split.npz", 200)
    before = content(out)
    with pytest.raises(fedloom.MessageError, match=r"split\.npz: .*damaged"):
        resume(out)
    assert content(out) == before
    with caplog.at_level(logging.WARNING):
        load(out)  # its models are whole all the same
    assert "split.npz" in caplog.text


def test_rows_that_are_not_those_of_the_run_make_no_report(
    undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(undisturbed, out)
    replace_text(out / "rounds.jsonl", b'{"round": 2', b'{"round": 7')
    with pytest.raises(fedloom.DataError, match=r"rounds\.jsonl: .*changed or damaged"):
        fedloom.report(out, tmp_path / "report.html")
    assert RunReader(out).damage.keys() == {"rounds.jsonl"}


def test_a_damaged_first_model_is_named(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_config(parse({**SMALL, "warm_start": str(undisturbed)}), out=out)
    flip(out / "start.safetensors", -3)
    with pytest.raises(fedloom.MessageError, match=r"start\.safetensors: .*damaged"):
        resume(out)
    (out / "start.safetensors").unlink()
    with pytest.raises(fedloom.MessageError, match=r"start\.safetensors: cannot"):
        resume(out)


def test_a_damaged_table_of_gains_is_named_by_an_export(
    undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(undisturbed, out)
    (out / "gain.parquet").write_bytes(b"PAR1")
    with pytest.raises(fedloom.DataError, match=r"gain\.parquet: not a whole table"):
        load(out).export(tmp_path / "e", clients=[0])


def test_renamed_clients_are_changed_data(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(40, 3)), np.arange(40) % 2

    def clients(*names: str) -> Any:
        return fedloom.federation(x, y, clients=np.array(names)[np.arange(40) % 2])

    out = tmp_path / "run"
    fedloom.run("fedavg", "mlr", clients("north", "south"), rounds=1, out=out)
    renamed = clients("northern", "southern")
    assert renamed.hash == clients("north", "south").hash
    with pytest.raises(fedloom.DataError, match="the clients have other names"):
        fedloom.resume(out, "mlr", renamed)
    with pytest.raises(fedloom.DataError, match="the clients have other names"):
        fedloom.load(out, "mlr", renamed)
    fedloom.load(out, "mlr", clients("north", "south"))


def test_a_run_of_an_earlier_version_is_refused_with_the_reason(
    undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(undisturbed, out)
    manifest = json.loads((out / "manifest.json").read_text())
    del manifest["format"]
    (out / "manifest.json").write_text(json.dumps(manifest))
    before = content(out)
    message = r"expected the format 'fedloom-run-2', found None"
    for act in (resume, load, collect_one):
        with pytest.raises(fedloom.MessageError, match=message):
            act(out)
    assert content(out) == before
    assert not RunDirectory(out).is_ours


def collect_one(path: Path) -> None:
    collect([path])
