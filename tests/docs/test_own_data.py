"""The pages of custodian and analyst: their specs are read, and their commands lead from records to an answer."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from dpbayes.cli import app
from dpbayes.latent_class import study
from dpbayes.privacy.ledger import open_ledger
from dpbayes.runs import load_spec
from dpbayes.runs.execution import _release
from dpbayes.runs.protocol import Context

ROOT = Path(__file__).resolve().parents[2]
PAGE = "\n".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("custodian", "analyst"))
CUSTODIAN, ANALYST = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
RECORDS, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(CODEBOOK,) = re.findall(r"```csv\n(.*?)```", PAGE, re.DOTALL)
MAIN = "from dpbayes.cli import main; main()"
COMMANDS = [
    line for line in re.findall(r"^    (dpbayes .*)$", PAGE, re.MULTILINE) if line.split()[1] not in ("init", "check")
]
(INIT,) = re.findall(r"^    (dpbayes init .*)$", PAGE, re.MULTILINE)
FEW = ["sampling.draws=10", "sampling.tune=20", "sampling.chains=32", "sampling.rounds=1"]
FEW += ["model.n_classes=2", "synthesis.n_datasets=1"]


def written(folder):
    (folder / "custodian.toml").write_text(CUSTODIAN)
    (folder / "analyst.toml").write_text(ANALYST)
    return folder


def test_both_specs_are_read(tmp_path):
    folder = written(tmp_path)
    assert load_spec(folder / "custodian.toml").spec.privacy.ledger == "budget.db"
    assert load_spec(folder / "analyst.toml").spec.privacy is None


def test_init_writes_what_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(RECORDS, "records.py", "exec"), {})
    (tmp_path / "codebook.csv").write_text(CODEBOOK)
    made = CliRunner().invoke(app, shlex.split(INIT)[1:])
    assert made.exit_code == 0, made.output
    ours = load_spec(tmp_path / "custodian.toml").spec
    shown = load_spec(written(tmp_path) / "custodian.toml").spec
    assert (ours.data.microdata, ours.data.levels, ours.data.labels) == (
        shown.data.microdata, shown.data.levels, shown.data.labels,
    )  # fmt: skip
    assert ours.synthesis == shown.synthesis and ours.privacy.epsilon == shown.privacy.epsilon


VARIANTS = re.findall(r"^\| (`\w+ = .*) \| `(--.*)` \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("lines", "flags"), VARIANTS)
def test_other_noise_is_released_with_the_book_that_the_page_opens_for_it(tmp_path, monkeypatch, lines, flags):
    lines = re.findall(r"`(\w+ = [^`]*)`", lines)
    keys = {line.split(" = ")[0] for line in lines} | ({"epsilon"} if "rho" in "".join(lines) else set())
    kept = [line for line in CUSTODIAN.splitlines() if line.split(" = ")[0] not in keys]
    text = "\n".join(kept).replace("[privacy]", "\n".join(["[privacy]", *lines]))
    (tmp_path / "custodian.toml").write_text(text)
    loaded, book = load_spec(tmp_path / "custodian.toml"), tmp_path / "budget.db"
    opened = CliRunner().invoke(app, [*shlex.split(COMMANDS[0])[1:3], str(book), *shlex.split(COMMANDS[0])[4:],
                                      *shlex.split(flags)])  # fmt: skip
    assert opened.exit_code == 0, opened.output
    rng = np.random.default_rng(1)
    frame = pl.DataFrame({name: rng.choice(levels, 500) for name, levels in loaded.spec.data.levels.items()})
    frame.write_csv(tmp_path / "records.csv")
    context = Context(tmp_path, tmp_path, lambda line: None)
    monkeypatch.setattr(study, "try_fit", lambda spec, design, context: None)
    release = _release(loaded, context)
    assert release.sampler == "opendp" and release.n_public == ("total_share" not in keys)
    said = "epsilon = 1.0" if "rho" not in keys else "charges 0.90" if "tight" in flags else "epsilon 1.59"
    assert said in PAGE
    assert open_ledger(book).spent().epsilon == pytest.approx(float(said.split()[-1]), abs=0.005)


def test_the_page_has_all_variants():
    assert len(VARIANTS) == 3


def dpbayes(command, folder, *more):
    arguments = shlex.split(command)[1:]
    flags = {"PYTENSOR_FLAGS": "", "PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "MPLBACKEND": "Agg"}
    return subprocess.run([sys.executable, "-c", MAIN, *arguments, *more],
                          cwd=folder, env=flags, capture_output=True, text=True, check=False)  # fmt: skip


@pytest.mark.slow
def test_from_records_to_the_analysts_posterior(tmp_path):
    custodian, analyst = (tmp_path / name for name in ("custodian", "analyst"))
    custodian.mkdir(), analyst.mkdir()
    rng = np.random.default_rng(1)
    levels = load_spec(written(custodian) / "custodian.toml").spec.data.levels
    frame = pl.DataFrame({name: rng.choice(values, 500) for name, values in levels.items()})
    frame.write_csv(custodian / "records.csv")
    opened, first, shown, second = COMMANDS
    few = [part for change in FEW for part in ("--set", change)]
    assert dpbayes(opened, custodian).returncode == 0
    done = dpbayes(first, custodian, *few)
    assert done.returncode in (0, 3), done.stderr[-2000:]  # so few draws may not pass the convergence check
    book = dpbayes(shown, custodian)
    assert book.returncode == 0 and "survey of 2026" in book.stdout
    written(analyst)
    (custodian / "release-1" / "release.json").rename(analyst / "release.json")
    done = dpbayes(second, analyst, *few)
    assert done.returncode in (0, 3), done.stderr[-2000:]
    assert (analyst / "runs" / "analyst" / "report.html").is_file()
