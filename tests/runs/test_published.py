"""Specs of published tables: what they say, what is refused, what a check prints; no ledger, no records."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from census_files import COUNTY, GEOCODE, simulated_county, simulated_tracts, write_measurements

from dpbayes.errors import InputError, SpecError
from dpbayes.inference import read_trace
from dpbayes.privacy import DiscreteGaussian, read_release
from dpbayes.report.document import Callout
from dpbayes.report.frame import Findings, framed
from dpbayes.report.tables import released_section
from dpbayes.runs import execute, load_spec
from dpbayes.runs.execution import finished_release, kept_release, plan_lines

SPEC = """\
system = "latent-class"
title = "Sex and age from an office's tables"
[data]
published = "tables.csv"
publisher = "An office"
source = "https://example.org"
date = "2026-11"
mechanism = "discrete Gaussian mechanism"
total = 1000
[[tables]]
levels = ["age", "sex"]
value = "noisy"
where = { table = "A" }
law = "discrete-gaussian"
variance = "var"
[[tables]]
levels = ["sex"]
value = "noisy"
where = { table = "B" }
law = "two-sided-geometric"
scale = 4.0
"""
FILE = "table,sex,age,noisy,var\nA,f,0,220,16\nA,m,0,231,16\nA,f,1,262,16\nA,m,1,290,64\nB,f,,484,\nB,m,,522,\n"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "tables.csv").write_text(FILE)
    (tmp_path / "study.toml").write_text(SPEC)
    return tmp_path / "study.toml"


def test_check_says_what_was_understood(spec: Path) -> None:
    loaded = load_spec(spec)
    release = finished_release(loaded)
    assert release.tables[0].variances.tolist() == [[16.0, 16.0], [16.0, 64.0]] and release.n == 1000
    lines = plan_lines(loaded)
    assert lines[0] == "release: 6 counts in 2 tables, published by An office (2026-11)"
    assert "age x sex: 4 cells, discrete Gaussian noise of standard deviation 4 to 8 in each" in lines[1]
    assert "privacy: post-processing of a published release; this run costs nothing and charges no ledger" in lines
    assert any(line.startswith("stated noise: In 3 independent differences") for line in lines)


def test_the_page_names_publisher_and_mechanism_and_claims_no_cost(spec: Path) -> None:
    release = finished_release(load_spec(spec))
    made = {"dpbayes_version": "0", "created_at": "now", "spec_digest": "d"}
    findings = Findings("An answer.", [released_section(release)], verdict=Callout("good", "Yes", ["It holds."]))
    page = framed(findings, title="t", question="q", release=release, trace=None, made=made)
    facts = page.all_facts()
    assert facts["headline"]["cost"] == "post-processing of a published release" and facts["privacy"] is None
    provenance = {"publisher": "An office", "source": "https://example.org", "published on": "2026-11"}
    assert provenance.items() <= facts["provenance"].items()
    assert facts["provenance"]["stated mechanism"] == "discrete Gaussian mechanism"
    assert facts["provenance"]["noise drawn by"] == "its publisher"


def test_a_file_that_changed_since_is_seen(spec: Path, tmp_path: Path) -> None:
    loaded, folder = load_spec(spec), tmp_path / "run"
    folder.mkdir()
    first = finished_release(loaded)
    first.write(folder / "release.json")
    assert kept_release(folder, loaded).digest == first.digest
    spec.with_name("tables.csv").write_text(FILE.replace("220", "221"))
    assert kept_release(folder, loaded) is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('publisher = "An office"\n', "", "published tables need publisher"),
        ('published = "tables.csv"\n', 'release = "r.json"\n', "said of data.published, and there is none"),
        ("scale = 4.0\n", "", "takes one of scale and variance, got neither"),
        ("[[tables]]", '[privacy]\nepsilon = 1.0\n[[tables]]', "carries its own cost; leave .privacy. out"),
        ("total = 1000\n", 'total = 1000\ngeocode = "01"\n', "says who published it and how"),
    ],
)  # fmt: skip
def test_what_a_spec_cannot_say(spec: Path, old: str, new: str, message: str) -> None:
    spec.write_text(SPEC.replace(old, new, 1))
    with pytest.raises(SpecError, match=message):
        load_spec(spec)


def with_a_threshold(spec: Path) -> str:
    """Leave out the women of the first age, counted below 225, and return the text of the spec that says so."""
    spec.with_name("tables.csv").write_text(FILE.replace("A,f,0,220,16\n", "A,f,0,,16\n"))
    return SPEC.replace('law = "discrete', 'threshold = 225\nlaw = "discrete', 1)


def strict_facts(folder: Path) -> dict:
    """Read facts.json as other languages do, without NaN."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"facts.json holds {constant}")

    return json.loads((folder / "facts.json").read_text(), parse_constant=refuse)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["tables", "cells"])
def test_the_latent_class_model_fits_counts_held_back(spec: Path, form: str) -> None:
    spec.write_text(with_a_threshold(spec))
    short = [
        "sampling.backend='interpreted'",
        "sampling.chains=64",
        "sampling.tune=10",
        "sampling.draws=10",
        "sampling.rounds=1",
        "model.n_classes=2",
    ]
    loaded = load_spec(spec, [*short, f"model.likelihood={form}"])
    assert "age x sex: 4 cells" in plan_lines(loaded)[1] and "1 held back below 225" in plan_lines(loaded)[1]
    result = execute(loaded, out=spec.with_name("run"), progressbar=False, echo=lambda line: None)
    trace = read_trace(result.folder / "trace.nc")
    held = trace["posterior"]["exact_counts"][..., 0]
    assert 212 < float(held.mean()) < 230  # B measures the women (484), of whom 262 are of the other age
    assert np.isneginf(trace["observed_data"]["released"][0])
    page = (result.folder / "report.html").read_text()
    assert "Counts that were held back stand at their threshold" in page and "was held back below its" in page
    assert "predictive_check" in json.dumps(strict_facts(result.folder))


@pytest.mark.parametrize("method", ["noise-aware", "algorithm-1"])
def test_prior_aware_estimation_fits_counts_held_back(spec: Path, method: str) -> None:
    rows = [("f", 0, 21), ("m", 0, 23), ("f", 1, 27), ("m", 1, 29)]
    pl.DataFrame([{"sex": s, "age": a} for s, a, n in rows for _ in range(n)]).write_csv(spec.with_name("public.csv"))
    levels = 'public = "public.csv"\n[data.levels]\nage = ["0", "1"]\nsex = ["f", "m"]\n[[tables]]'
    text = with_a_threshold(spec).replace("latent-class", "ide").replace("[[tables]]", levels, 1)
    spec.write_text(text + f'[estimation]\nmethod = "{method}"\n')
    if method == "algorithm-1":
        with pytest.raises(InputError, match="table age x sex has 1 of them held back below 225; leave the table"):
            plan_lines(load_spec(spec))
        return
    result = execute(load_spec(spec), out=spec.with_name("run"), progressbar=False, echo=lambda line: None)
    facts = strict_facts(result.folder)
    assert facts["headline"]["cost"] == "post-processing of a published release"
    moved = json.loads((result.folder / "result.json").read_text())["result"]["moved"][0]
    assert moved["released"][0] is None and 0.21 < moved["estimate"][0] < 0.225  # by the prior .21
    assert "was held back below its threshold" in (result.folder / "report.html").read_text()


def test_a_census_geography_by_its_code(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    county = simulated_tracts(3, rng).sum(axis=0)
    queries, constraints = write_measurements(tmp_path, {"US": county}, 25.0, rng)
    said = {"published": queries, "constraints": constraints}
    files = {key: path.joinpath("State=01", "part-0.parquet").relative_to(tmp_path) for key, path in said.items()}
    text = 'system = "latent-class"\ntitle = "A county"\n[data]\ngeocode = "US"\n'
    (tmp_path / "county.toml").write_text(text + "".join(f'{key} = "{path}"\n' for key, path in files.items()))
    release = finished_release(load_spec(tmp_path / "county.toml"))
    assert release.n == county.sum() and [table.counts.size for table in release.tables] == [2, 2, 63, 4, 126, 126, 252]
    assert release.tables[0].noise == DiscreteGaussian(np.sqrt(25.0 * 1.3))
    assert read_release(release.write(tmp_path / "release.json")).publication.publisher == "US Census Bureau"


def test_the_simulated_county_runs_to_whole_counts_of_the_exact_total(tmp_path: Path) -> None:
    """The file is what its generator writes; a short run holds the true counts of large cells, and no negative one."""
    county, frame = simulated_county()
    assert pl.read_parquet(COUNTY).equals(frame)
    short = ["sampling.draws=150", "sampling.tune=150", "sampling.chains=2"]
    loaded = load_spec(COUNTY.with_suffix(".toml"), short)
    assert loaded.spec.data.geocode == GEOCODE
    result = execute(loaded, out=tmp_path / "run", progressbar=False, echo=lambda line: None)
    counts = read_trace(result.folder / "trace.nc")["posterior"]["counts"]
    assert counts.min() == 0 and set(counts.sum(["votingage", "hispanic", "cenrace"]).to_numpy().ravel()) == {45969}
    seen = counts.mean(["chain", "draw"]).transpose("votingage", "hispanic", "cenrace").to_numpy()
    assert np.abs(seen - county.sum(axis=0)).max() < 30  # 6 standard deviations of what is left
    facts = json.loads((result.folder / "facts.json").read_text())
    assert facts["headline"]["cost"] == "post-processing of a published release"


def test_whole_counts_take_a_threshold_and_a_noisy_total(spec: Path) -> None:
    text = with_a_threshold(spec).replace("total = 1000\n", "")
    spec.with_name("tables.csv").write_text(spec.with_name("tables.csv").read_text() + "N,,,1010,\n")
    total = '[[tables]]\nvalue = "noisy"\nwhere = { table = "N" }\nlaw = "two-sided-geometric"\nscale = 4.0\n'
    spec.write_text(text.replace('"latent-class"', '"study:whole_counts"') + total)
    assert plan_lines(load_spec(spec))[0].startswith("release: 6 counts in 2 tables")
    short = load_spec(spec, ["sampling.draws=400", "sampling.tune=100", "sampling.chains=2"])
    result = execute(short, out=spec.with_name("run"), progressbar=False, echo=lambda line: None)
    held = read_trace(result.folder / "trace.nc")["posterior"]["counts"].sel(sex="f", age="0")
    assert 215 < float(held.mean()) < 230  # B measures the women (484), of whom 262 are of the other age
