import multiprocessing
import os
import signal
import time

import pytest

from dpbayes.errors import DamagedFileError, ExistingRunError
from dpbayes.runs.folder import check_free, choose_folder, read_json, workspace, write_text


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


@pytest.mark.parametrize("content", [b"", b'{"draws": 4', b"\xff\xfe", b"[" * 100_000, b"3"])
def test_a_damaged_result_is_named_with_a_remedy(tmp_path, content):
    path = tmp_path / "study.json"
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"study\.json .*run the spec again"):
        read_json(path)


def test_a_finished_run_moves_into_place_and_replaces_the_former_one(tmp_path):
    folder = tmp_path / "run"
    for content in ("first", "second"):
        with workspace(folder, "spec") as partial:
            write_text(partial / "result", content)
            assert not (folder / "result").exists() or (folder / "result").read_text() == "first"
        assert (folder / "result").read_text() == content
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]
    assert sorted(p.name for p in folder.iterdir()) == ["result", "spec.toml"]


def test_a_failed_run_stays_and_is_resumed_by_the_same_spec_only(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(RuntimeError, match="midway"), workspace(folder, "spec") as partial:
        write_text(partial / "release", "drawn")
        raise RuntimeError("midway")
    assert not folder.exists()
    with pytest.raises(ExistingRunError, match="unfinished run of another spec"), workspace(folder, "other"):
        pass
    with workspace(folder, "spec") as partial:
        assert (partial / "release").read_text() == "drawn"
    assert (folder / "release").read_text() == "drawn"


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
