import fcntl
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest

from dpbayes.data import datasets
from dpbayes.errors import DamagedFileError, ExistingRunError, InputError
from dpbayes.privacy import release_tables
from dpbayes.runs import execute, load_spec
from dpbayes.runs.execution import kept_release
from dpbayes.runs.folder import check_free, choose_folder, read_json, workspace, write_text

CONFIDENTIAL = """
[data]
microdata = "none.csv"
[data.levels]
age = [0, 1]
sex = ["f", "m"]
[privacy]
epsilon = 1.0
"""


def test_the_next_free_name_is_chosen(tmp_path):
    assert choose_folder("a", tmp_path) == tmp_path / "a"
    (tmp_path / "a").mkdir()
    (tmp_path / "a-2").mkdir()
    assert choose_folder("a", tmp_path) == tmp_path / "a-3"


def test_an_existing_run_is_not_overwritten_without_force(tmp_path):
    folder = tmp_path / "run"
    check_free(folder, force=False)
    folder.mkdir()
    with pytest.raises(ExistingRunError, match="pass --force"):
        check_free(folder, force=False)
    with pytest.raises(ExistingRunError, match="is not a run folder"):
        check_free(folder, force=True)
    (folder / "spec.toml").touch()
    check_free(folder, force=True)


@pytest.mark.parametrize(
    ("spec", "drawn", "said"),
    [
        (
            CONFIDENTIAL,
            True,
            "replace it. Either draws a new release and spends epsilon again; to fit the one that is there, set "
            'data.release = "../run/release.json" in place of the records and [privacy]',
        ),
        (CONFIDENTIAL, False, "replace it"),
        ('[data]\nrelease = "release.json"\n', True, "replace it"),
        ('[data]\nembedded = "acs_tables"\n[privacy]\nepsilon = 1.0\nsimulation_seed = 1\n', True, "replace it"),
    ],
)
def test_the_refusal_says_what_a_second_run_would_cost(tmp_path, spec, drawn, said):
    folder, path = tmp_path / "run", tmp_path / "specs" / "study.toml"
    folder.mkdir(), path.parent.mkdir()
    path.write_text('system = "latent-class"\ntitle = "t"\n' + spec)
    if drawn:
        (folder / "release.json").touch()
    with pytest.raises(ExistingRunError) as refused:
        execute(load_spec(path), out=folder)
    assert str(refused.value).endswith(said)


@pytest.mark.parametrize(("drawn", "lines"), [(True, 1), (False, 0)])
def test_a_run_that_goes_beside_a_finished_one_says_what_it_costs(tmp_path, monkeypatch, drawn, lines):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text('system = "latent-class"\ntitle = "t"\n' + CONFIDENTIAL)
    former = tmp_path / "runs" / "study"
    former.mkdir(parents=True)
    if drawn:
        (former / "release.json").touch()
    said = []
    with pytest.raises(FileNotFoundError, match=r"none\.csv"):
        execute(load_spec(tmp_path / "study.toml"), echo=said.append)
    assert len(said) == lines
    for line in said:
        assert line.startswith(
            "runs/study is already there, so this run goes to runs/study-2. This run draws a new release"
        )
        assert 'data.release = "runs/study/release.json"' in line


@pytest.mark.parametrize("content", [b"", b'{"draws": 4', b"\xff\xfe", b"[" * 100_000, b"3"])
def test_a_damaged_result_is_named_with_a_remedy(tmp_path, content):
    path = tmp_path / "study.json"
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"study\.json .*run the spec again"):
        read_json(path)


def test_a_finished_release_is_kept_until_another_one_stands_in_its_place(tmp_path):
    folder, given = tmp_path / "run.partial", tmp_path / "given.json"
    folder.mkdir()
    spec = tmp_path / "study.toml"
    spec.write_text('system = "latent-class"\ntitle = "t"\nquestion = "q?"\n[data]\nrelease = "given.json"\n')
    first, other = (release_tables(datasets.acs_tables(), epsilon=e, rng=np.random.default_rng(1)) for e in (1.0, 2.0))
    first.write(given)
    first.write(folder / "release.json")
    loaded = load_spec(spec)
    assert kept_release(tmp_path / "another", loaded) is None
    assert kept_release(folder, loaded).digest == first.digest
    other.write(given)
    assert kept_release(folder, loaded) is None
    (folder / "trace.nc").touch()
    with pytest.raises(ExistingRunError, match=r"given\.json has changed since .*restore it to finish that run"):
        kept_release(folder, loaded)


@pytest.mark.parametrize("name", ["file/run", "file/below/run"])
def test_a_folder_that_cannot_be_made_is_named(tmp_path, name):
    (tmp_path / "file").touch()
    said = rf"{name}\.partial cannot be made \(Not a dir.*choose another --out"
    with pytest.raises(InputError, match=said), workspace(tmp_path / name, "spec"):
        pass


def test_a_name_that_no_folder_can_have_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"a{300} cannot be made \(File name too long\); choose another --out"):
        check_free(tmp_path / ("a" * 300), force=False)


def test_a_finished_run_moves_into_place_and_replaces_the_former_one(tmp_path):
    folder = tmp_path / "run"
    for content in ("first", "second"):
        with workspace(folder, "spec") as partial:
            write_text(partial / "result", content)
            assert not (folder / "result").exists() or (folder / "result").read_text() == "first"
        assert (folder / "result").read_text() == content
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]
    assert sorted(p.name for p in folder.iterdir()) == ["result", "spec.toml"]


def test_a_folder_that_no_run_left_is_not_deleted(tmp_path):
    former = tmp_path / "run.former"
    former.mkdir()
    (former / "thesis.txt").touch()
    said = r"run\.former is not what a replaced run left; move it away"
    with pytest.raises(ExistingRunError, match=said), workspace(tmp_path / "run", "spec"):
        pass
    assert (former / "thesis.txt").exists() and not (tmp_path / "run.partial").exists()
    (former / "spec.toml").touch()
    with workspace(tmp_path / "run", "spec"):
        pass
    assert not former.exists()


def test_a_failed_run_stays_and_is_resumed_by_the_same_spec_only(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(RuntimeError, match="midway"), workspace(folder, "spec") as partial:
        write_text(partial / "release", "drawn")
        raise RuntimeError("midway")
    assert not folder.exists()
    with (
        pytest.raises(
            ExistingRunError, match=r"unfinished run of another spec.*finish it with that spec \(spec.toml in it\)"
        ),
        workspace(folder, "other"),
    ):
        pass
    with workspace(folder, "spec") as partial:
        assert (partial / "release").read_text() == "drawn"
    assert (folder / "release").read_text() == "drawn"


@pytest.mark.parametrize(
    "left", [[], ["truth.json", "model.py"], ["truth.json.tmp"], ["certificate.json", "warnings.json"]]
)
def test_a_run_that_released_nothing_leaves_no_claim_on_its_place(tmp_path, left):
    folder = tmp_path / "run"
    with pytest.raises(FileNotFoundError, match="wrong name"), workspace(folder, "spec") as partial:
        for name in left:
            (partial / name).touch()
        raise FileNotFoundError("wrong name")
    with workspace(folder, "corrected") as partial:
        assert sorted(path.name for path in partial.iterdir()) == [".lock", "spec.toml"]
        assert (partial / "spec.toml").read_text() == "corrected"
    assert [path.name for path in folder.iterdir()] == ["spec.toml"]


@pytest.mark.parametrize("paid", ["release.json", "release.json.tmp", "notes.txt"])
def test_what_may_have_been_paid_for_is_named_and_stays(tmp_path, paid):
    with pytest.raises(RuntimeError), workspace(tmp_path / "run", "spec") as partial:
        (partial / "truth.json").touch()
        (partial / paid).touch()
        raise RuntimeError
    with pytest.raises(ExistingRunError, match=f"another spec with {paid}"), workspace(tmp_path / "run", "other"):
        pass
    assert {path.name for path in partial.iterdir()} == {".lock", "spec.toml", "truth.json", paid}
    assert (partial / "spec.toml").read_text() == "spec"


def test_a_folder_is_not_taken_over_while_its_run_lives(tmp_path):
    with workspace(tmp_path / "run", "spec") as partial:
        lock = (partial / ".lock").stat().st_ino
        with pytest.raises(ExistingRunError, match="another process is writing"), workspace(tmp_path / "run", "other"):
            pass
        assert (partial / "spec.toml").read_text() == "spec"
        assert (partial / ".lock").stat().st_ino == lock


def test_a_run_that_finished_meanwhile_is_not_replaced(tmp_path, monkeypatch):
    spec, out = tmp_path / "study.toml", tmp_path / "run"
    spec.write_text('system = "latent-class"\ntitle = "t"\n[data]\nembedded = "acs_tables"\n[privacy]\nepsilon = 1.0\n')

    def finish_another(folder):
        folder.mkdir(exist_ok=True)
        if not out.exists():
            out.mkdir()
            (out / "spec.toml").touch()
            (out / "release.json").write_text("paid for")

    monkeypatch.setattr("dpbayes.runs.folder.make_folder", finish_another)
    with pytest.raises(ExistingRunError, match=r"is already there.* spends epsilon again"):
        execute(load_spec(spec), out=out, progressbar=False, echo=lambda line: None)
    assert (out / "release.json").read_text() == "paid for"


def test_a_lock_of_a_folder_that_was_moved_away_is_no_lock(tmp_path, monkeypatch):
    """The other process finishes between our opening its lock and our locking it."""
    folder, partial = tmp_path / "run", tmp_path / "run.partial"
    partial.mkdir()
    flock = fcntl.flock

    def finish_first(handle, how):
        partial.replace(folder)
        (folder / ".lock").unlink()
        flock(handle, how)

    monkeypatch.setattr("dpbayes.runs.folder.fcntl.flock", finish_first)
    with pytest.raises(ExistingRunError, match="another process is writing"), workspace(folder, "spec"):
        pass
    assert not partial.exists() and list(folder.iterdir()) == []


def _hang(folder):
    with workspace(folder, "spec") as partial:
        write_text(partial / "release", "drawn")
        time.sleep(600)


def test_a_killed_run_leaves_a_resumable_folder_and_a_living_one_is_locked(tmp_path):
    folder = tmp_path / "run"
    process = multiprocessing.get_context("spawn").Process(target=_hang, args=(folder,))
    process.start()
    release = tmp_path / "run.partial" / "release"
    while not release.exists():
        time.sleep(0.01)
    with pytest.raises(ExistingRunError, match="another process is writing"), workspace(folder, "spec"):
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with workspace(folder, "spec") as partial:
        assert (partial / "release").read_text() == "drawn"
    assert (folder / "release").exists()
