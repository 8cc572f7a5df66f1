"""The page on one's own data: its specs are read, and its commands lead from records to a posterior."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from dpbayes.runs import load_spec

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "own_data.md").read_text(encoding="utf-8")
CUSTODIAN, ANALYST = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
MAIN = "from dpbayes.cli import main; main()"
COMMANDS = re.findall(r"^    (dpbayes .*)$", PAGE, re.MULTILINE)
FEW = ["sampling.draws=50", "sampling.tune=100", "sampling.chains=2", "model.n_classes=2", "synthesis.n_datasets=1"]


def written(folder):
    (folder / "custodian.toml").write_text(CUSTODIAN)
    (folder / "analyst.toml").write_text(ANALYST)
    return folder


def test_both_specs_are_read(tmp_path):
    folder = written(tmp_path)
    assert load_spec(folder / "custodian.toml").spec.privacy.ledger == "budget.db"
    assert load_spec(folder / "analyst.toml").spec.privacy is None


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
    assert done.returncode in (0, 3), done.stderr[-2000:]  # so few draws may not pass the gate
    book = dpbayes(shown, custodian)
    assert book.returncode == 0 and "survey of 2026" in book.stdout
    written(analyst)
    (custodian / "release-1" / "release.json").rename(analyst / "release.json")
    done = dpbayes(second, analyst, *few)
    assert done.returncode in (0, 3), done.stderr[-2000:]
    assert (analyst / "runs" / "analyst" / "report.html").is_file()
