"""A file of confidential records that does not read is named, and nothing of it is shown anywhere."""

import os
import re
import sys
from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pytest

from dpbayes.cli.main import main, unexpected
from dpbayes.data import records
from dpbayes.errors import InputError, MissingColumnError, UnreadableDataError
from dpbayes.runs import execute, load_spec
from dpbayes.runs.protocol import Context

SECRET = "SECRET-4711-JohnDoe"
N = 3000

SPECS = {
    "latent-class": """
system = "latent-class"
title = "t"
[data]
microdata = "FILE"
[data.levels]
age = [0, 1, 2]
sex = ["f", "m"]
[privacy]
epsilon = 1.0
""",
    "verifier": """
system = "verifier"
title = "t"
[data]
microdata = "FILE"
levels = {sex = ["f", "m"]}
[privacy]
epsilon = 2.0
n_partitions = 5
[[questions]]
name = "gap"
formula = "age ~ sex"
coefficient = "sex[T.m]"
threshold = 0.0
""",
    "mvg": """
system = "mvg"
title = "t"
[data]
file = "FILE"
ranges = {age = [0.0, 2.0], weight = [0.0, 1.0]}
[privacy]
epsilon = 1.0
delta = 1e-5
[regression]
predictors = ["age"]
response = "weight"
""",
    "ide": """
system = "ide"
title = "t"
[data]
public = "public.csv"
private = "FILE"
by = "sex"
tables = "by-feature"
[data.levels]
age = ["0", "1", "2"]
sex = ["f", "m"]
[privacy]
epsilon = 2.0
""",
}
HEADER = "age,sex,weight"
ROWS = [f"{i % 3},{'fm'[i % 2]},0.{i % 10}" for i in range(N)]


def with_row(row: str) -> bytes:
    return "\n".join([HEADER, *ROWS[:2500], row, *ROWS[2500:]]).encode()


DAMAGE = {
    "text among integers": with_row(f"{SECRET},f,0.5"),
    "an open quote": with_row(f'1,"f,0.5\n{SECRET},m,0.5'),
    "an open quote in the first column": with_row(f'"{SECRET},f,0.5'),
    "a ragged line": with_row(f"1,f,0.5,{SECRET}"),
    "another encoding": with_row(f"1,{SECRET}\xff,0.5").replace(b"\xc3\xbf", b"\xff"),
    "a number out of range": with_row(f"{'9' * 60},{SECRET},0.5"),
    "no header": "\n".join([f"{SECRET},f,0.5", *ROWS]).encode(),
    "an empty file": b"",
}


def run(folder, monkeypatch, system, name):
    """Run the command; return its exit code."""
    (folder / "public.csv").write_text("\n".join([HEADER, *ROWS]))
    (folder / "study.toml").write_text(SPECS[system].replace("FILE", name))
    monkeypatch.setattr(sys, "argv", ["dpbayes", "run", str(folder / "study.toml"), "--out", str(folder / "run")])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code


def assert_nothing_is_shown(shown, folder, name):
    assert SECRET not in shown.out + shown.err
    assert "Traceback" not in shown.err
    assert "0.3\n1,f,0.4" not in shown.out + shown.err  # lines after an open quote
    assert not list(folder.glob("run*"))
    for path in folder.rglob("*"):
        if path.is_file() and path.name != name:
            assert SECRET.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("system", SPECS)
def test_a_damaged_csv_file_shows_no_record(tmp_path, monkeypatch, capfd, system, damage):
    (tmp_path / "records.csv").write_bytes(DAMAGE[damage])
    code = run(tmp_path, monkeypatch, system, "records.csv")
    shown = capfd.readouterr()
    assert code == 2
    assert "dpbayes: " in shown.err
    assert_nothing_is_shown(shown, tmp_path, "records.csv")


@pytest.mark.parametrize("system", SPECS)
def test_what_does_not_read_is_named_with_a_remedy(tmp_path, monkeypatch, capfd, system):
    (tmp_path / "records.csv").write_bytes(DAMAGE["a ragged line"])
    run(tmp_path, monkeypatch, system, "records.csv")
    assert "dpbayes: records.csv does not read as CSV: a quote is left open" in capfd.readouterr().err


@pytest.mark.parametrize("system", SPECS)
def test_utf16_text_and_a_header_without_rows_are_told(tmp_path, monkeypatch, capfd, system):
    whole = "\n".join([HEADER, *ROWS])
    for content, said in (
        (whole.encode("utf-16"), "UTF-16 text.*save it as UTF-8"),
        (HEADER.encode(), "no (rows|records)"),
    ):
        (tmp_path / "records.csv").write_bytes(content)
        assert run(tmp_path, monkeypatch, system, "records.csv") == 2
        assert re.search(said, capfd.readouterr().err)


@pytest.mark.parametrize("system", SPECS)
def test_a_column_that_does_not_fit_is_named(tmp_path, monkeypatch, capfd, system):
    (tmp_path / "records.csv").write_bytes(DAMAGE["text among integers"])
    run(tmp_path, monkeypatch, system, "records.csv")
    assert "age" in capfd.readouterr().err


@pytest.mark.parametrize("damage", ["no Parquet", "cut off", "text among integers"])
@pytest.mark.parametrize("system", SPECS)
def test_a_damaged_parquet_file_shows_no_record(tmp_path, monkeypatch, capfd, system, damage):
    path = tmp_path / "records.parquet"
    columns = {"age": [SECRET, "1"] * 50, "sex": ["f", "m"] * 50, "weight": [0.5] * 100}
    pl.DataFrame(columns).write_parquet(path, compression="uncompressed")
    whole = path.read_bytes()
    assert SECRET.encode() in whole
    path.write_bytes({"no Parquet": SECRET.encode() * 9, "cut off": whole[:-40] + whole[-8:]}.get(damage, whole))
    assert run(tmp_path, monkeypatch, system, path.name) == 2
    shown = capfd.readouterr()
    assert_nothing_is_shown(shown, tmp_path, path.name)
    if damage != "text among integers":
        assert "records.parquet does not read as Parquet" in shown.err


KINDS = {
    "list": ("age", pl.concat_list("age", "age"), "list"),
    "duration": ("age", pl.duration(days=pl.col("age")), "duration"),
    "struct": ("sex", pl.struct("sex", "age"), "struct"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("system", SPECS)
def test_a_parquet_column_that_holds_no_levels_is_named(tmp_path, monkeypatch, capfd, system, kind):
    name, column, said = KINDS[kind]
    frame = pl.DataFrame({"age": [0, 1] * 50, "sex": ["f", "m"] * 50, "weight": [0.5] * 100})
    frame.with_columns(column.alias(name)).write_parquet(tmp_path / "records.parquet")
    code = run(tmp_path, monkeypatch, system, "records.parquet")
    if system == "mvg" and name == "sex":  # which it does not read
        assert code in (0, 3)
    else:
        assert code == 2 and re.search(rf"column '{name}' of type {said}", capfd.readouterr().err, re.IGNORECASE)


@pytest.mark.parametrize("system", SPECS)
def test_a_file_that_is_not_there_is_named(tmp_path, monkeypatch, capfd, system):
    assert run(tmp_path, monkeypatch, system, "none.csv") == 2
    assert "none.csv; data." in capfd.readouterr().err


@pytest.mark.parametrize("system", ["latent-class", "verifier"])
def test_a_release_that_is_not_there_is_named(tmp_path, system):
    path = tmp_path / "study.toml"
    path.write_text(f'system = "{system}"\ntitle = "t"\n[data]\nrelease = "gone.json"\n')
    with pytest.raises(FileNotFoundError, match=r"no file .*gone\.json; data\.release is resolved beside the spec"):
        execute(load_spec(path), out=tmp_path / "run", echo=lambda line: None)


def test_an_error_that_nobody_foresaw_shows_no_text_unless_asked(tmp_path, monkeypatch, capfd):
    def fail(*_, **__):
        raise pl.exceptions.ComputeError(SECRET)

    monkeypatch.setattr("dpbayes.runs.execution.check_allowed", fail)
    (tmp_path / "records.csv").write_text("\n".join([HEADER, *ROWS]))
    assert run(tmp_path, monkeypatch, "latent-class", "records.csv") == 1
    error = capfd.readouterr().err
    assert "unexpected ComputeError at " in error and "DPBAYES_TRACEBACK=1" in error
    assert SECRET not in error and error.count("\n") == 1
    monkeypatch.setenv("DPBAYES_TRACEBACK", "1")
    with pytest.raises(pl.exceptions.ComputeError, match=SECRET):
        main()


def test_an_error_in_a_file_that_may_not_be_looked_at_shows_no_text_either(monkeypatch):
    real = os.stat

    def stat(path, *arguments, **options):
        if str(path).startswith("/closed/"):
            raise PermissionError(13, "Permission denied")
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(RuntimeError) as caught:
        exec(compile(f"raise RuntimeError({SECRET!r})", "/closed/model.py", "exec"))
    said = unexpected(caught.value)
    assert said.startswith("unexpected RuntimeError at ") and SECRET not in said


@pytest.mark.parametrize(
    ("mark", "said"), [(";", "its fields by commas"), ("\t", "its fields by commas"), (",", "data.file")]
)
def test_fields_that_commas_do_not_separate_are_told_from_a_missing_column(tmp_path, mark, said):
    path = tmp_path / "records.csv"
    path.write_text(f"age{mark}{SECRET}\n1{mark}2\n")
    frame = records.scan_records(path, setting="data.file")
    with pytest.raises(MissingColumnError, match=f"lacks the columns .*sex.*{said}") as refused:
        records.require_columns(frame, ["age", "sex"], path, source="data.file")
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("cells", "levels", "expected"),
    [
        (["0", "1", "2"], [0, 1, 2], [0, 1, 2]),
        (["0.0", " 1", "02"], [0, 1, 2], [0, 1, 2]),
        (["true", "False", "1"], [0, 1], [1, 0, 1]),
        (["0.5", "1e9x", "-1", "", " "], [0, 1], [2, 2, -1, None, None]),
        (["01", "02", "1"], ["01", "02"], ["01", "02", "1"]),
        (["1", "a", "2"], ["a", 1], ["1", "a", "2"]),
    ],
)
def test_text_becomes_the_declared_kind_of_level(tmp_path, cells, levels, expected):
    path = tmp_path / "records.csv"
    path.write_text("\n".join(["a,b", *(f"{cell},0" for cell in cells)]))
    frame = records.code_levels(records.scan_records(path, setting="data.file"), {"a": levels, "absent": [1]})
    assert frame.collect()["a"].to_list() == expected


def test_columns_without_levels_keep_the_type_that_all_their_rows_have(tmp_path):
    path = tmp_path / "records.csv"
    path.write_bytes(DAMAGE["text among integers"])
    frame = records.scan_records(path, setting="data.file", text=["sex", "absent"]).collect()
    assert frame.schema == {"age": pl.String, "sex": pl.String, "weight": pl.Float64}


def test_the_engine_s_error_is_not_printed_with_ours(tmp_path):
    path = tmp_path / "records.csv"
    path.write_bytes(DAMAGE["an open quote"])
    with pytest.raises(UnreadableDataError) as error, records.readable(path):
        records.scan_records(path, setting="data.file").collect()
    assert isinstance(error.value, InputError) and error.value.__suppress_context__
    assert error.value.__cause__ is None


def test_counts_of_csv_and_parquet_agree(tmp_path):
    from dpbayes.latent_class.study import Data, _tables

    frame = pd.DataFrame([row.split(",") for row in ROWS], columns=HEADER.split(",")).astype({"age": int})
    frame.to_csv(tmp_path / "records.csv", index=False)
    frame.to_parquet(tmp_path / "records.parquet")
    levels = {"age": [0, 1, 2], "sex": ["f", "m"]}
    csv, parquet = (
        _tables(Data(microdata=f"records.{kind}", levels=levels), tmp_path)[0].counts.tolist()
        for kind in ("csv", "parquet")
    )
    assert csv == parquet == [[500, 500]] * 3


def test_a_csv_file_that_names_a_wanted_column_twice_is_refused(tmp_path):
    path = tmp_path / "twice.csv"
    path.write_text("a,b,a,c,c\nx,0,y,1,2\n")
    frame = records.scan_records(path, setting="data.microdata")
    records.require_columns(frame, ["b"], path, source="data.levels")
    with pytest.raises(InputError, match=r"twice\.csv names the columns a twice"):
        records.require_columns(frame, ["a", "b"], path, source="data.levels")


def test_a_header_with_doubled_quotes_names_its_column(tmp_path):
    path = tmp_path / "quoted.csv"
    path.write_text('"say ""hi""","b"\n"007","0"\n"x","1"\n')
    for text in (None, ['say "hi"']):
        frame = records.scan_records(path, setting="data.microdata", text=text)
        records.require_columns(frame, ['say "hi"', "b"], path, source="data.levels")
        assert frame.collect()['say "hi"'].to_list() == ["007", "x"]


def test_spaces_around_a_value_are_no_other_level_unless_a_level_has_some(tmp_path):
    path = tmp_path / "records.csv"
    path.write_text("a,b,c\n yes ,no ,x\nno,no,\n,no,x\n")
    declared = {"a": ["yes", "no", ""], "b": ["no ", "no"], "c": ["x", ""], "absent": ["1"]}
    frame = records.code_levels(records.scan_records(path, setting="data.file"), declared).collect()
    assert frame.rows() == [("yes", "no ", "x"), ("no", "no", ""), ("", "no", "x")]


BIG = 2**53  # beyond it doubles are no whole numbers: BIG + 1 would become BIG
WHOLE = {
    "latent-class": f"""
system = "latent-class"
title = "t"
[data]
microdata = "records.parquet"
unit = "person"
attribute_sets = [["code", "sex"]]
[data.levels]
code = [{BIG}, {BIG + 1}]
sex = ["f", "m"]
[privacy]
epsilon = 1000.0
""",
    "verifier": f"""
system = "verifier"
title = "t"
[data]
microdata = "records.parquet"
unit = "person"
levels = {{code = [{BIG}, {BIG + 1}]}}
[privacy]
epsilon = 1000.0
n_partitions = 300
[[questions]]
name = "gap"
formula = "age ~ code"
coefficient = "code[T.{BIG + 1}]"
threshold = 0.0
""",
    "ide": f"""
system = "ide"
title = "t"
[data]
public = "records.parquet"
private = "records.parquet"
unit = "person"
tables = [["code", "sex"]]
[data.levels]
code = ["{BIG}", "{BIG + 1}"]
sex = ["f", "m"]
[privacy]
epsilon = 1000.0
""",
    "ide groups": f"""
system = "ide"
title = "t"
[data]
public = "records.parquet"
private = "records.parquet"
unit = "person"
[data.levels]
sex = ["f", "m"]
age = ["0", "1"]
[groups]
attribute = "code"
parent = {{{BIG} = "x", {BIG + 1} = "x"}}
[privacy]
epsilon = 1000.0
""",
}


@pytest.mark.parametrize("system", WHOLE)
@pytest.mark.parametrize("missing", [None, "code", "person", "age"])
def test_whole_numbers_beyond_those_of_doubles_stay_apart_beside_a_missing_one(tmp_path, system, missing):
    columns = {
        "person": [BIG + i for i in range(300)],
        "code": [BIG + int(i >= 200) for i in range(300)],
        "sex": ["f"] * 299 + ["m"],
        "age": [i % 2 for i in range(300)],
    }
    frame = pl.DataFrame(columns, schema_overrides=dict.fromkeys(("person", "code", "age"), pl.Int64))
    if missing:
        frame = frame.with_columns(pl.when(pl.row_index() > 0).then(missing))
    frame.write_parquet(tmp_path / "records.parquet")
    (tmp_path / "study.toml").write_text(WHOLE[system])
    loaded = load_spec(tmp_path / "study.toml")
    context = Context(tmp_path, tmp_path, echo=lambda line: None)
    draw = partial(loaded.module.release, loaded.spec, context, rng=np.random.default_rng(1), ledger=None)
    used = {"age": ("ide groups",), "code": ("latent-class", "ide", "ide groups")}.get(missing, tuple(WHOLE))
    if missing and system in used:
        with pytest.raises(InputError, match=r"missing value|which is no level"):
            draw()
    elif system == "verifier":
        assert draw().n == 300  # as many partitions as there are units
    elif system == "ide groups":
        assert [part.n.value for part in draw().groups.values()] == [200, 100]
    else:
        assert draw().tables[0].counts.tolist() == [[200, 0], [99, 1]]
