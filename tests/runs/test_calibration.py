"""Calibration of specs: what is simulated, what is refused, and the study's folder."""

import json
import pickle

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

from dpbayes.cli.main import app
from dpbayes.data import datasets
from dpbayes.errors import ExistingRunError, InputError, SpecError
from dpbayes.inference.sampling import NutsSettings
from dpbayes.inference.sbc import prior_simulator
from dpbayes.runs import calibration, execute, load_spec
from dpbayes.runs.calibration import calibrate, calibration_document, calibration_of, judge

ACS = "models/acs_latent_class.toml"

MICRODATA = """\
system = "latent-class"
title = "A study of three attributes"
[data]
microdata = "there-is-no-such-file.csv"
attribute_sets = [["a", "b"], ["c", "b"]]
[data.levels]
a = [0, 1]
b = ["x", "y", "z"]
c = [0, 1]
[privacy]
epsilon = 1.0
[model]
n_classes = 3
"""


@pytest.fixture
def write(tmp_path):
    def _write(text: str):
        path = tmp_path / "study.toml"
        path.write_text(text)
        return load_spec(path)

    return _write


def test_simulated_truth_and_data_are_those_of_one_table(write):
    """Counts of all tables agree, are those of n records, and differ from the margins by sampling noise alone."""
    found = calibration_of(write(MICRODATA), n_records=4000)
    assert found.var_names == ("margin", "cell", "exact_counts")
    simulate = pickle.loads(pickle.dumps(found.simulate))
    residuals, offsets = [], []
    for seed in range(60):
        truth, data = simulate(seed)
        exact = truth["exact_counts"]
        one, other = exact[:6].reshape(2, 3), exact[6:].reshape(2, 3)
        np.testing.assert_array_equal(one.sum(axis=0), other.sum(axis=0))
        assert exact[:6].sum() == 4000
        residuals.append(data["released_counts"] - exact)
        p = truth["margin"]
        offsets.append((exact - 4000 * p) / np.sqrt(4000 * p * (1 - p) + 1e-9))
        np.testing.assert_allclose(truth["cell"].sum(axis=2).ravel(), p[:6], atol=1e-12)
    # 60 x 12 values each: relative standard errors of a standard deviation below 6 %; 5 of them.
    law = simulate.release.tables[0].noise
    assert np.std(residuals) == pytest.approx(law.variance**0.5, rel=0.3)
    assert np.std(offsets) == pytest.approx(1.0, rel=0.3)
    np.testing.assert_array_equal(simulate(59)[1]["released_counts"], data["released_counts"])


def test_a_population_that_varies_is_simulated(write):
    """Counts vary about the population's own shares as sampling does, and the data enter the same model."""
    text = MICRODATA.replace("n_classes = 3", 'n_classes = 3\nlikelihood = "cells"\noverdispersion = true')
    found = calibration_of(write(text), n_records=4000)
    offsets = []
    for seed in range(60):
        truth, data = found.simulate(seed)
        exact, p = truth["exact_counts"], truth["margin"]
        assert exact[:6].sum() == 4000 and np.isclose(p[:6].sum(), 1.0) and "overdispersion" not in truth
        assert np.isclose(truth["cell"].sum(), 1.0)
        offsets.append((exact - 4000 * p) / np.sqrt(4000 * p * (1 - p) + 1e-9))
        assert {"rotated_counts", "released_counts"} <= set(data)
    # As above: 5 relative standard errors of a standard deviation.
    assert np.std(offsets) == pytest.approx(1.0, rel=0.3)


def test_the_design_is_the_specs(write):
    loaded = write(MICRODATA.replace("epsilon = 1.0", 'epsilon = 1.0\nadjacency = "add-remove"\ntotal_share = 0.01'))
    found = calibration_of(loaded, n_records=300)
    release = found.simulate.release
    assert release.adjacency == "add-remove" and not release.n_public
    assert release.epsilon == pytest.approx(1.0)
    # Little budget for n: a scale of 100 records. The prior of n and the printed design are about those asked for.
    assert release.n.value == 300 and release.n.noise.scale == pytest.approx(100.0)
    assert found.design.startswith("300 records of 3 attributes, 2 tables, add-remove")
    truth, data = found.simulate(5)
    assert data["released_n_data"].shape == (1,)
    assert truth["exact_counts"][:6].sum() == truth["n"]
    acs = calibration_of(load_spec(ACS))
    assert acs.design.startswith("10,000 records of 5 attributes, 10 tables")
    assert acs.sampling["target_accept"] == 0.9


def test_structural_zeros_of_a_spec_are_simulated(write):
    text = MICRODATA.replace("n_classes = 3", 'n_classes = 3\nimpossible = [{ a = 0, b = ["y", "z"] }]')
    truth, data = calibration_of(write(text), n_records=500).simulate(2)
    assert truth["exact_counts"][1:3].tolist() == [0.0, 0.0]
    assert truth["cell"][0, 1:].sum() == 0.0
    assert truth["exact_counts"][:6].sum() == 500
    assert np.abs(data["released_counts"][1:3]).max() < 200  # noise of scale 4 alone


def test_a_release_gives_the_design(write, tmp_path):
    from dpbayes.privacy import release_tables

    release_tables(datasets.acs_tables(), epsilon=0.5, rng=np.random.default_rng(1)).write(tmp_path / "release.json")
    loaded = write('system = "latent-class"\ntitle = "t"\n[data]\nrelease = "release.json"\n')
    assert calibration_of(loaded).simulate.release.epsilon == pytest.approx(0.5)
    assert calibration_of(loaded, n_records=77).simulate.release.n == 77


def test_a_noisy_number_of_records_is_simulated_about_the_number_asked_for(write, tmp_path):
    """The prior of n is centred by a release's tables too, which here hold 10,000 records."""
    from dpbayes.latent_class.design import prior_of_n
    from dpbayes.privacy import release_tables

    rng = np.random.default_rng(1)
    given = release_tables(datasets.acs_tables(), epsilon=0.5, adjacency="add-remove", total_share=0.1, rng=rng)
    given.write(tmp_path / "release.json")
    loaded = write('system = "latent-class"\ntitle = "t"\n[data]\nrelease = "release.json"\n')
    release = calibration_of(loaded, n_records=77).simulate.release
    assert [int(table.counts.sum()) for table in release.tables] == [77] * len(given.tables)
    assert prior_of_n(release)[0] == pytest.approx(np.log(77))


def test_a_release_of_partitions_is_refused(write, tmp_path):
    from dpbayes.verifier import PartitionCounts, release_counts

    counts = {"q": PartitionCounts(20, 10, 0)}
    release_counts(counts, epsilon=1.0, rng=np.random.default_rng(1)).write(tmp_path / "release.json")
    loaded = write('system = "latent-class"\ntitle = "t"\n[data]\nrelease = "release.json"\n')
    with pytest.raises(SpecError, match=r"release\.json counts partitions, not records"):
        calibration_of(loaded)
    with pytest.raises(SpecError, match=r"release\.json counts partitions, not records"):
        execute(loaded, out=tmp_path / "run", echo=lambda line: None)


def test_a_study_of_a_release_is_not_extended_by_another_one(write, tmp_path, monkeypatch):
    from dpbayes.privacy import release_tables

    labels = []
    monkeypatch.setattr(calibration, "simulate_and_rank", lambda *_, label, **__: labels.append(label) or 1 / 0)
    loaded = write('system = "latent-class"\ntitle = "t"\n[data]\nrelease = "release.json"\n')
    for epsilon in (0.5, 0.5, 1.0):
        release = release_tables(datasets.acs_tables(), epsilon=epsilon, rng=np.random.default_rng(1))
        release.write(tmp_path / "release.json")
        with pytest.raises(ZeroDivisionError):
            calibrate(loaded, out=tmp_path / "study", echo=lambda line: None)
    first, same, other = labels
    assert first == same != other


def test_no_confidential_record_is_read(write):
    """The microdata file does not exist: nothing tries to open it, and n must be said."""
    loaded = write(MICRODATA)
    with pytest.raises(SpecError, match="--n-records"):
        calibration_of(loaded)
    assert calibration_of(loaded, n_records=50).design.startswith("50 records of 3 attributes")


@pytest.mark.parametrize(
    ("spec", "overrides", "n_records", "message"),
    [
        ("models/ide_massachusetts.toml", [], None, "say how many to simulate"),
        ("models/mvg_covariance.toml", [], None, "no posterior"),
        ("models/verifier_surface.toml", [], None, "no posterior"),
        ("models/verifier_threshold.toml", [], 50, "partitions"),
        ("models/bloom_audience.toml", [], 50, "positions"),
        (ACS, [], 0, "at least 1"),
    ],
)
def test_specs_without_a_posterior_are_refused(spec, overrides, n_records, message):
    with pytest.raises(SpecError, match=message):
        calibration_of(load_spec(spec, overrides), n_records=n_records)


@pytest.mark.parametrize(
    ("spec", "overrides", "expected"),
    [
        ("models/verifier_threshold.toml", [], {"r": (2,), "p": (2, 3)}),
        ("models/verifier_threshold.toml", ["model.pooling=partial"], {"r": (2,), "p": (2, 3)}),
        ("models/mvg_regression.toml", ["data.n=500"], {"intercept": (), "coefficient": (3,)}),
        (
            "models/bloom_audience.toml",
            ["audience.shares=[0.3, 0.2]", "filters.n_bits=1000"],
            {"logo_probability": (4,)},
        ),
    ],
)
def test_every_system_with_a_model_simulates_for_itself(spec, overrides, expected):
    """Truth and data of the right shapes come from the model's own prior, and differ from seed to seed."""
    found = calibration_of(load_spec(spec, overrides))
    model = pickle.loads(pickle.dumps(found.build_model))()
    simulate = found.simulate or prior_simulator(model, list(expected))
    first, second = simulate(1), simulate(2)
    for name, shape in expected.items():
        assert np.shape(first[0][name]) == shape
        assert not np.array_equal(first[0][name], second[0][name])
    for name, value in first[1].items():
        assert np.shape(value) == model[name].get_value().shape
    assert set(found.var_names) <= {variable.name for variable in model.unobserved_RVs}


def _study(pit):
    n = len(pit)
    values = {"passed": True, "rhat": 1.01, "ess_bulk": 300.0, "divergent_share": 0.0, "seconds": 2.0}
    fit = {name: ("simulation", np.full(n, value)) for name, value in values.items()}
    labels = {"simulation": range(n), "cell": list("abcd")}
    tree = xr.DataTree.from_dict(
        {"prior_sbc": xr.Dataset({"p": (("simulation", "cell"), pit)}, coords=labels), "fit": xr.Dataset(fit)}
    )
    tree.attrs = {"n_ranks": 99, "random_seed": "1"}
    return tree


def _pit(rng, power=1.0):
    return (np.floor(100 * rng.random((200, 4)) ** power) + 0.5) / 100


@pytest.mark.parametrize(("power", "passed"), [(1.0, True), (2.0, False)])
def test_the_folder_holds_page_facts_and_ranks(monkeypatch, tmp_path, power, passed):
    given = {}

    def run(build_model, **options):
        given.update(options)
        options["folder"].mkdir(parents=True)
        (options["folder"] / "study.json").write_text("{}")
        return _study(_pit(np.random.default_rng(3), power))

    monkeypatch.setattr(calibration, "simulate_and_rank", run)
    arguments = ["sbc", ACS, "-n", "200", "--n-records", "500", "--out", str(tmp_path / "sbc"), "--draws", "80"]
    result = CliRunner().invoke(app, [*arguments, "--chains", "1", "--quiet"])
    assert result.exit_code == (0 if passed else 3), result.output
    assert ("No miscalibration found" in result.output) == passed
    assert given["settings"] == NutsSettings(draws=80, tune=500, chains=1, target_accept=0.9)
    assert given["n_ranks"] == 80
    facts = json.loads((tmp_path / "sbc" / "facts.json").read_text())
    assert facts["headline"]["n_simulations"] == 200
    assert set(facts["p_values"]) == {f"p[cell={c}]" for c in "abcd"}
    assert facts["tables"]["variables"][0]["quantities"] == 4
    page = (tmp_path / "sbc" / "report.html").read_text()
    assert "500 records of 5 attributes" in page
    assert facts["verdict"]["tone"] == ("good" if passed else "bad")
    with xr.open_datatree(tmp_path / "sbc" / "ranks.nc", engine="h5netcdf") as ranks:
        assert ranks["prior_sbc"]["p"].shape == (200, 4)
    assert (tmp_path / "sbc" / "spec.toml").is_file()


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ExistingRunError, match="something else"):
        calibrate(load_spec(ACS), out=tmp_path, n_simulations=1)


def test_judging_keeps_its_level():
    """A right study fails by Bonferroni at 1 % at most: 300 studies, 10 failures or more have probability 1e-3."""
    rng = np.random.default_rng(4)
    failures = sum(not judge(_study(_pit(rng))).passed for _ in range(300))
    assert failures < 10
    missing = _pit(rng)
    missing[7, 2] = np.nan
    assert not judge(_study(missing)).passed
    assert judge(_study(missing)).coverages["p[cell=c]"] < 1


def test_many_quantities_that_are_all_wrong_are_found():
    """Every truth in the lower half of its posterior, for the 72 margins and cells of five binary attributes."""
    pit = (np.random.default_rng(6).integers(0, 50, size=(200, 72)) + 0.5) / 100
    study = xr.DataTree.from_dict({"prior_sbc": xr.Dataset({"p": (("simulation", "cell"), pit)})})
    study.attrs = {"n_ranks": 99, "random_seed": "1"}
    assert not judge(study).passed


def test_the_page_names_quantities_in_words_and_the_facts_by_variable():
    study = _study(_pit(np.random.default_rng(5)))
    labels = [f"p[cell={label}]" for label in study["prior_sbc"]["cell"].values]
    named = {"p": [f"citizen: {label}" for label in study["prior_sbc"]["cell"].values]}
    verdict = judge(study, called={"p": "shares"}, named=named)
    document = calibration_document(study, verdict, title="t", design="d", settings=NutsSettings())
    variables, worst = document.sections[0].blocks[1:]
    assert [row[0] for row in variables.rows] == ["shares"] and {row[0] for row in worst.rows} == set(named["p"])
    assert document.picture.figure.axes[0].get_title() == "shares" and "at citizen: " in document.answer
    assert list(document.facts["p_values"]) == labels
    # Without names of their own, quantities are called by variable and label.
    plain = judge(study).words
    assert [plain[label] for label in labels] == [f"p: {label}" for label in study["prior_sbc"]["cell"].values]


def test_few_simulations_and_failed_fits_are_said():
    study = _study(_pit(np.random.default_rng(5))[:20])
    study["fit"]["passed"][:] = np.arange(20) < 15
    document = calibration_document(study, judge(study), title="t", design="d", settings=NutsSettings())
    assert document.verdict.tone == "warning"
    assert "20 simulations show gross errors alone" in document.verdict.lines[0]
    assert "15 of 20 fits passed" in document.verdict.lines[1]


def test_the_worst_fit_is_the_one_with_the_fewest_effective_draws():
    study = _study(_pit(np.random.default_rng(5))[:11])
    study["fit"]["ess_bulk"][:] = np.arange(100.0, 1101.0, 100.0)
    study["fit"]["rhat"][:] = np.linspace(1.0, 1.1, 11)
    document = calibration_document(study, judge(study), title="t", design="d", settings=NutsSettings())
    rows = {row[0]: row[1:] for row in document.sections[-1].blocks[-1].rows}
    assert rows["fewest effective draws"] == pytest.approx([600.0, 200.0, 100.0])
    assert rows["largest R-hat"] == pytest.approx([1.05, 1.09, 1.1])


@pytest.mark.slow
def test_a_small_study_of_a_spec_from_beginning_to_end(tmp_path):
    """Forty simulations of a claim: not rejected (false alarm 1 %), and extended without fitting again."""
    loaded = load_spec("models/verifier_threshold.toml", ["privacy.n_partitions=20"])
    out = tmp_path / "study"
    options = {"out": out, "progressbar": False, "echo": lambda line: None}
    settings = NutsSettings(draws=200, tune=300, chains=2, cores=1)
    first = calibrate(loaded, n_simulations=25, settings=settings, **options)
    stamps = {path.name: path.stat().st_mtime_ns for path in (out / "simulations").iterdir()}
    second = calibrate(loaded, n_simulations=40, settings=settings, **options)
    assert first.passed and second.passed, second.summary
    now = {path.name: path.stat().st_mtime_ns for path in (out / "simulations").iterdir()}
    assert len(now) == 41 and all(now[name] == stamp for name, stamp in stamps.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "overrides", "least"),
    [
        ("models/verifier_threshold.toml", ["privacy.n_partitions=20"], 8),
        ("models/mvg_regression.toml", ["data.n=500"], 5),
        ("models/bloom_audience.toml", ["audience.shares=[0.3, 0.2]", "filters.n_bits=1000"], 4),
    ],
)
def test_the_other_systems_are_ranked(spec, overrides, least, tmp_path):
    """Three simulations each from beginning to end: every quantity has a rank, and the page is written."""
    settings = NutsSettings(draws=100, tune=200, chains=2, cores=1)
    result = calibrate(
        load_spec(spec, overrides),
        out=tmp_path / "study",
        n_simulations=3,
        settings=settings,
        progressbar=False,
        echo=lambda line: None,
    )
    facts = json.loads((result.folder / "facts.json").read_text())
    assert facts["headline"]["n_quantities"] >= least
    assert min(facts["p_values"].values()) > 0.0  # none is missing


def test_a_study_folder_that_cannot_be_made_is_refused_before_anything_compiles(tmp_path):
    (tmp_path / "file").write_text("")
    spec = load_spec("models/acs_latent_class.toml")
    for out in (tmp_path / "file", tmp_path / "file" / "study"):
        with pytest.raises(InputError, match=r"cannot be made .*choose another --out"):
            calibrate(spec, out=out, n_simulations=1)
