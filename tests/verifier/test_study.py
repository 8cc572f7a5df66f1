"""Runs of the verifier from specs: folders, reports, refusals."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpbayes.data.datasets import wages
from dpbayes.errors import InputError, SpecError
from dpbayes.inference import read_trace
from dpbayes.privacy import read_release
from dpbayes.privacy.ledger import create_ledger
from dpbayes.report import compare_runs
from dpbayes.report.document import Callout, Figure
from dpbayes.runs import execute, load_spec
from dpbayes.runs.calibration import calibration_of
from dpbayes.runs.protocol import Context
from dpbayes.verifier import PartitionCounts, draw_posterior, release_counts
from dpbayes.verifier.page import verification_findings
from dpbayes.verifier.study import _read, design, try_fit

MODELS = Path(__file__).parents[2] / "models"


def run(spec, tmp_path, *overrides):
    # Beside the spec stands what was last seen of its ledger.
    copy = tmp_path / spec.name
    if copy != spec:
        copy.write_text(spec.read_text())
    return execute(load_spec(copy, overrides), out=tmp_path / "run", progressbar=False, echo=lambda line: None)


def test_a_verification_runs_and_reports(tmp_path):
    result = run(MODELS / "verifier_threshold.toml", tmp_path, "data.n_persons=400", "model.draws=50")
    assert result.passed
    names = {path.name for path in result.folder.iterdir()}
    # Eight persons each are few for nine parameters: said before, and kept for the page.
    assert names == {"spec.toml", "release.json", "trace.nc", "warnings.json", "facts.json", "report.html"}
    release = read_release(result.folder / "release.json")
    assert (release.sampler, release.unit, release.epsilon, release.n) == ("opendp", "partition", 1.0, 50)
    trace = read_trace(result.folder / "trace.nc")
    assert trace["posterior"]["p"].sizes == {"chain": 4, "draw": 50, "question": 2, "outcome": 3}
    assert trace.attrs["release_digest"] == release.digest
    facts = json.loads((result.folder / "facts.json").read_text())
    assert [row["question"] for row in facts["tables"]["answers"]] == list(trace["posterior"]["question"].values)
    assert facts["headline"]["epsilon"] == 1.0
    assert facts["privacy"] == {
        "adjacency": "replace-one",
        "unit": "unit of column 'person' (all its rows)",
        "delta": 0.0,
    }
    assert facts["mass_left_out"] < 1e-12
    # Each row shows the cost of its whole question: the head says so, and the rows do not add to the total.
    assert {row["question_epsilon"] for row in facts["tables"]["released"]} == {0.5}
    # Where the true counts lie, by outcome: their means add to M for each question.
    means = [row["mean"] for row in facts["tables"]["true_counts"]]
    assert [sum(means[i : i + 3]) for i in (0, 3)] == pytest.approx([50, 50], abs=1e-9)
    page = (result.folder / "report.html").read_text()
    assert "No sampler ran" in page
    assert "of the computable partitions (about " in facts["answer"]
    assert release.protected_unit == "person"
    assert json.loads(trace.attrs["privacy_record"])["protected_unit"] == "person"
    assert "one record: all rows that share a value of column &#39;person&#39;" in page
    # What was counted is confidential: nothing but noisy counts is in the folder.
    assert "simulation" not in page


def test_verifications_of_persons_and_of_rows_are_told_apart(tmp_path):
    wages(100, seed=1).drop("sex", "sector").write_csv(tmp_path / "wages.csv")
    spec = tmp_path / "study.toml"
    spec.write_text(
        """
system = "verifier"
title = "t"
data = {microdata = "wages.csv", unit = "person"}
privacy = {epsilon = 1.0, n_partitions = 5}
questions = [{name = "a", formula = "wage ~ education", coefficient = "education", threshold = 0}]
model = {draws = 10}
"""
    )
    rows = tmp_path / "rows.toml"
    rows.write_text(spec.read_text().replace(', unit = "person"', ""))
    folders = [execute(load_spec(path), out=tmp_path / path.stem, progressbar=False).folder for path in (spec, rows)]
    page = compare_runs(folders)
    blocks = [block for section in page.sections for block in section.blocks]
    assert "Different unit" in [block.title for block in blocks if isinstance(block, Callout)]
    # What is compared are the answers, here of one question, and not the three true counts.
    assert page.answer.startswith("For “mean” of “Share of partitions in which each claim holds”, the interval is ")
    assert any(isinstance(block, Figure) for s in page.sections if s.title == "Answers" for block in s.blocks)
    terms = [json.loads((folder / "facts.json").read_text())["privacy"]["unit"] for folder in folders]
    # By rows the unit is that of a table of records.
    assert terms == ["unit of column 'person' (all its rows)", "row"]


def test_a_simulated_run_repeats_itself_and_says_so(tmp_path):
    spec = MODELS / "verifier_threshold.toml"
    overrides = ("data.n_persons=300", "model.draws=10", "privacy.simulation_seed=4")
    releases = []
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
        folder = run(spec, tmp_path / part, *overrides).folder
        releases.append(read_release(folder / "release.json").digest)
        assert "A simulation, not a release" in (folder / "report.html").read_text()
    assert releases[0] == releases[1]


def test_a_design_study_runs_and_reports(tmp_path):
    small = ("surface.n_partitions=[4, 8]", "surface.epsilon=[1.0, 4.0]", "surface.r=[0.9]", "surface.wanted=0.5")
    result = run(MODELS / "verifier_surface.toml", tmp_path, *small)
    facts = json.loads((result.folder / "facts.json").read_text())
    assert len(facts["tables"]["surface"]) == 4
    assert facts["privacy"] == {"adjacency": "either", "unit": "unit", "delta": 0.0}
    designs = {row["n_partitions"]: row["epsilon"] for row in facts["tables"]["designs"]}
    assert designs[8] is not None
    assert facts["answer"].startswith(
        f"To decide rightly with chance 0.5 takes epsilon {min(filter(None, designs.values())):.3g}"
    )
    page = (result.folder / "report.html").read_text()
    assert "Dirichlet(1, 1, 1)" in page


def test_a_design_study_with_two_outcomes(tmp_path):
    small = ("surface.n_partitions=[6]", "surface.epsilon=[1.0, 4.0]", "surface.r=[0.9]", "surface.wanted=0.99")
    result = run(MODELS / "verifier_surface.toml", tmp_path, *small, "surface.alpha=[1.0, 1.0]", "surface.failed=0.0")
    facts = json.loads((result.folder / "facts.json").read_text())
    assert "more than these designs offer" in facts["answer"]


@pytest.mark.slow
def test_a_pooled_verification_answers_from_the_pooled_draws(tmp_path):
    overrides = ("data.n_persons=400", 'model.pooling="partial"', "model.draws=500", "privacy.simulation_seed=4")
    result = run(MODELS / "verifier_threshold.toml", tmp_path, *overrides)
    facts = json.loads((result.folder / "facts.json").read_text())
    draws = read_trace(result.folder / "trace.nc")["posterior"]["r"]
    for row in facts["tables"]["pooled"]:
        mean = float(draws.sel(question=row["question"]).mean())
        assert row["mean"] == pytest.approx(mean, abs=1e-12)
        assert row["alone_mean"] != row["mean"]
        assert f"{100 * mean:.0f}\N{NO-BREAK SPACE}% of the computable partitions" in facts["answer"]
    assert {row["prob_majority"] for row in facts["tables"]["pooled"]} <= set(np.arange(2001) / 2000)


def test_microdata_and_a_finished_release(tmp_path):
    wages(300).with_columns(sex=wages(300)["sex"].cast(str)).drop("sector").write_parquet(tmp_path / "wages.parquet")
    spec = tmp_path / "study.toml"
    spec.write_text(
        """
system = "verifier"
title = "t"
[data]
microdata = "wages.parquet"
unit = "person"
levels = {sex = ["male", "female"]}
[privacy]
epsilon = 2.0
n_partitions = 12
adjacency = "add-remove"
noise = "laplace"
with_failures = false
[[questions]]
name = "gap"
formula = "np.log(wage) ~ education + sex"
coefficient = "sex[T.female]"
significant_at = 0.2
[model]
draws = 10
"""
    )
    folder = run(spec, tmp_path).folder
    release = read_release(folder / "release.json")
    assert (release.adjacency, release.n) == ("add-remove", 12)
    # Failures were not released apart, so the answer cannot speak of them.
    assert "computable" not in json.loads((folder / "facts.json").read_text())["answer"]
    assert release.tables[0].counts.shape == (2,)
    again = tmp_path / "again.toml"
    again.write_text('system = "verifier"\ntitle = "t"\n[data]\nrelease = "run/release.json"\n[model]\ndraws = 10\n')
    other = execute(load_spec(again), out=tmp_path / "other", progressbar=False, echo=lambda line: None)
    assert read_release(other.folder / "release.json").digest == release.digest
    # A part that states no epsilon makes of the total a rho.
    replace(release, tables=[replace(table, epsilon=None) for table in release.tables]).write(tmp_path / "rho.json")
    unstated, lines = load_spec(again, ['data.release="rho.json"']), []
    execute(unstated, out=tmp_path / "unstated", progressbar=False, echo=lines.append)
    assert any("2 partitions, at rho " in line for line in lines), lines


@pytest.mark.parametrize(("not_computed", "tone"), [(2, "good"), (20, "good"), (30, "warning"), (48, "warning")])
def test_most_partitions_not_computed_is_a_warning(not_computed, tone):
    spec = load_spec(MODELS / "verifier_threshold.toml").spec
    counts = PartitionCounts(50 - not_computed - 1, 1, not_computed)
    release = release_counts({"a": counts, "b": PartitionCounts(40, 8, 2)}, epsilon=100.0, rng=np.random.default_rng(1))
    page = verification_findings(spec, release, draw_posterior(release, draws=10, chains=1), [])
    assert page.verdict.tone == tone
    first, second = page.answer.split("probability", 1)
    # The mean of Dirichlet(1, 1, 1) after 50 partitions; the noise is negligible at this epsilon.
    assert f"(about {100 * (not_computed + 1) / 53:.0f}\N{NO-BREAK SPACE}% could not be computed)" in first
    assert "(about 6\N{NO-BREAK SPACE}% could not be computed)" in second
    said = [line for line in page.verdict.lines if line.startswith("\u201ca\u201d could not")]
    assert len(said) == (tone == "warning")
    assert not any(line.startswith("\u201cb\u201d could not") for line in page.verdict.lines)


MAJORITY, POWER = "holds in more than half of the partitions exactly where", "the share is the power of the test"


@pytest.mark.parametrize(
    ("names", "said"),
    [(["exact"], [MAJORITY]), (["tested"], [POWER]), (["exact", "tested"], [MAJORITY, POWER])],
)
def test_significance_is_not_read_by_the_majority_of_partitions(names, said):
    # The test has less power in a partition: few of them reject where the whole data do.
    spec = load_spec(MODELS / "verifier_threshold.toml").spec
    first = spec.questions[0]
    asked = {
        "exact": first.model_copy(update={"name": "exact"}),
        "tested": first.model_copy(update={"name": "tested", "threshold": None, "significant_at": 0.05}),
    }
    release = release_counts(dict.fromkeys(names, PartitionCounts(8, 92, 0)), epsilon=4.0, rng=np.random.default_rng(1))
    draws = draw_posterior(release, draws=10, chains=1)
    for questions in ([asked[name] for name in names], []):
        page = verification_findings(spec.model_copy(update={"questions": questions}), release, draws, [])
        (answers,) = (section for section in page.sections if section.title == "Answers")
        text = " ".join(getattr(block, "text", "") for block in answers.blocks)
        # A finished release does not say what was asked: both readings stand there.
        assert [words for words in (MAJORITY, POWER) if words in text] == (said if questions else [MAJORITY, POWER])
        assert page.answer.count("in most of them") == (len(names) - ("tested" in names) if questions else len(names))


def test_a_run_in_which_almost_nothing_is_computed_says_so(tmp_path):
    # Ten persons in 60 partitions: five sixths are empty, and no fit has rows enough.
    overrides = ("data.n_persons=10", "model.draws=10", "privacy.n_partitions=60", "privacy.epsilon=20.0")
    result = run(MODELS / "verifier_threshold.toml", tmp_path, *overrides, 'privacy.adjacency="add-remove"')
    assert "Most partitions could not be computed" in (result.folder / "report.html").read_text()


def test_more_partitions_than_units_are_refused_before_the_ledger(tmp_path):
    book = create_ledger(tmp_path / "book.db", epsilon=1.0, delta=0.0, adjacency="replace-one")
    overrides = ("data.n_persons=40", "privacy.n_partitions=50", f'privacy.ledger="{book.path}"')
    with pytest.raises(InputError, match="50 partitions are more than the 40 units"):
        run(MODELS / "verifier_threshold.toml", tmp_path, *overrides)
    assert not book.entries()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["privacy.n_partitions=2500", "privacy.epsilon=0.001"], "up to 1,999 every release has fewer.* epsilon$"),
        # The release that a spec expects has few terms; one that the noise moves far does not.
        (["privacy.n_partitions=5000", "privacy.epsilon=0.2"], "n_partitions = 5000, privacy.epsilon = 0.2 the"),
        # Counts that contradict so strong a prior have many terms, those of an even split few.
        (["privacy.n_partitions=5000", "privacy.epsilon=9.0", "model.alpha=[1e6, 1e6, 1.0]"], "weaken alpha"),
    ],
)
def test_a_posterior_that_may_be_too_large_is_refused_before_the_ledger(overrides, message, tmp_path):
    book = create_ledger(tmp_path / "book.db", epsilon=10.0, delta=0.0, adjacency="replace-one")
    design = ("data.n_persons=20000", f'privacy.ledger="{book.path}"', *overrides)
    with pytest.raises(SpecError, match=message):
        run(MODELS / "verifier_threshold.toml", tmp_path, *design)
    assert not book.entries()


@pytest.mark.parametrize("pooling", ["none", "partial"])
def test_what_fails_after_the_release_is_tried_before_the_ledger(pooling, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr("dpbayes.verifier.exact.draw_posterior", fail)
    monkeypatch.setattr("dpbayes.verifier.model.build_model", fail)
    book = create_ledger(tmp_path / "book.db", epsilon=10.0, delta=0.0, adjacency="replace-one")
    overrides = (f'privacy.ledger="{book.path}"', f'model.pooling="{pooling}"', "data.n_persons=100")
    with pytest.raises(MemoryError):
        run(MODELS / "verifier_threshold.toml", tmp_path, *overrides)
    assert not book.entries()


@pytest.mark.parametrize(("adjacency", "outcomes", "n_partitions"), [("replace-one", 3, 1999), ("add-remove", 2, 5000)])
def test_designs_whose_posteriors_fit_are_tried(adjacency, outcomes, n_partitions, tmp_path):
    alpha = [0.01, 1e6, 1.0][:outcomes]
    overrides = [f"privacy.n_partitions={n_partitions}", f'privacy.adjacency="{adjacency}"', f"model.alpha={alpha}"]
    overrides += ["privacy.epsilon=0.01", f"privacy.with_failures={str(outcomes == 3).lower()}", "model.draws=10"]
    spec = load_spec(MODELS / "verifier_threshold.toml", overrides).spec
    try_fit(spec, design(spec, tmp_path), Context(tmp_path, tmp_path))


@pytest.mark.parametrize("alpha", [[0.01, 0.01, 1e6], [1e6, 0.01, 1e6]])
def test_the_priors_that_a_spec_may_state_have_draws_and_a_report(alpha):
    spec = load_spec(MODELS / "verifier_threshold.toml", [f"model.alpha={alpha}"]).spec
    release = release_counts(PartitionCounts(0, 0, 50), epsilon=1.0, rng=np.random.default_rng(1))
    trace = draw_posterior(release, alpha=spec.model.alpha, **spec.model.drawing)
    assert np.isfinite(trace["posterior"]["r"]).all()
    page = verification_findings(spec, release, trace, [])
    blocks = [block for section in page.sections for block in section.blocks]
    (answers,) = (block for block in blocks if getattr(block, "name", "") == "answers")
    # The prior says that no partition is computed, or that all beyond: nothing beside alpha speaks of r.
    assert answers.facts()[0]["mean"] == pytest.approx(alpha[0] / sum(alpha[:2]), rel=1e-3)


@pytest.mark.parametrize("last", ["9", "A9", "5.5"])
def test_what_stands_in_one_row_does_not_say_whom_the_other_rows_belong_to(tmp_path, last):
    # Read as numbers, 1, 01 and 1.0 are one unit, and the last two are one beside a fraction.
    names = ["1", "01", "1.0", "12345678901234567", "12345678901234568"]
    rows = [f"{name},{name},{i},{i * i % 7}" for i, name in enumerate([*names, last])]
    (tmp_path / "pay.csv").write_text("\n".join(["person,group,pay,hours", *rows]))
    spec = tmp_path / "study.toml"
    spec.write_text(
        """
system = "verifier"
title = "t"
data = {microdata = "pay.csv", unit = "person"}
privacy = {epsilon = 1.0, n_partitions = 2}
[[questions]]
name = "a"
formula = "pay ~ hours"
coefficient = "hours"
threshold = 0
absorb = ["group"]
"""
    )
    asked = load_spec(spec).spec
    path, columns = tmp_path / asked.data.microdata, (asked.data.unit, asked.data.strata)
    records = _read(path, asked.data.levels, asked.questions, columns, setting="data.microdata")
    for column in ("person", "group"):
        assert records[column].to_list() == [*names, last]
    with pytest.raises(InputError, match="9 partitions are more than the 6 units"):
        run(spec, tmp_path, "privacy.n_partitions=9")


def test_a_group_may_also_be_calculated_with(tmp_path):
    rows = [f"{2000 + i % 3},{i % 7},{i % 5}" for i in range(60)]
    (tmp_path / "pay.csv").write_text("\n".join(["year,pay,hours", *rows]))
    spec = tmp_path / "study.toml"
    spec.write_text(
        """
system = "verifier"
title = "t"
data = {microdata = "pay.csv"}
privacy = {epsilon = 1.0, n_partitions = 2}
[[questions]]
name = "a"
formula = "pay ~ hours + hours:year"
coefficient = "hours:year"
threshold = 0
absorb = ["year"]
"""
    )
    assert run(spec, tmp_path, "model.draws=10").passed


@pytest.mark.parametrize(
    "levels", ["region = [1, 2]", 'region = ["1", "2"]', "sex = [1, 2]", 'sex = ["male", "female"]']
)
def test_records_that_the_codebook_does_not_know_are_refused_before_the_ledger(tmp_path, levels):
    rows = [f"{i},{i % 7 + i / 9:.3f},{'mf'[i % 2]},{i % 3 + 1}" for i in range(60)]
    (tmp_path / "pay.csv").write_text("\n".join(["person,pay,sex,region", *rows]))
    book = create_ledger(tmp_path / "book.db", epsilon=1.0, delta=0.0, adjacency="replace-one")
    spec = tmp_path / "study.toml"
    spec.write_text(
        f"""
system = "verifier"
title = "t"
[data]
microdata = "pay.csv"
levels = {{{levels}}}
[privacy]
epsilon = 1.0
n_partitions = 3
ledger = "book.db"
[[questions]]
name = "a"
formula = "pay ~ person + {levels.split()[0]}"
coefficient = "person"
threshold = 0
"""
    )
    with pytest.raises(InputError, match=f"column '{levels.split()[0]}' holds a value outside its levels"):
        run(spec, tmp_path)
    assert not book.entries()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("privacy.epsilon=0.0", "greater than 0"),
        ("privacy.n_partitions=0", "greater than or equal to 1"),
        ("privacy.epsilom=1.0", "did you mean 'epsilon'"),
        ("model.alpha=[1.0, 1.0, 0.0]", r"model\.alpha\.2: must be greater than or equal to 0\.01"),
        ("model.alpha=[1e-300, 1e300, 1.0]", r"model\.alpha\.1: must be less than or equal to 1000000"),
        ("model.draws=1000000000", "model.draws: must be less than or equal to 1000000, got 1000000000"),
        ("model.draws=2_500_000", "must be less than or equal to 1000000, got 2500000"),
        ("data.release=a.json", "exactly one"),
        ("surface.epsilon=[1.0]", "surface"),
        ("model.alpha=[1.0, 1.0]", "3 numbers"),
        ('questions=[{name="a", formula="np.lg(y) ~ x", coefficient="x", threshold=0}]', "calls something else"),
        ('questions=[{name="a", formula="y ~ x ~ z", coefficient="x", threshold=0}]', "does not parse"),
    ],
)
def test_specs_with_mistakes_are_refused(override, message):
    with pytest.raises(SpecError, match=message):
        load_spec(MODELS / "verifier_threshold.toml", [override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "privacy.n_partitions=2001",
            r'at most 2,000 partitions.*lower privacy.n_partitions, or set model.pooling = "none"',
        ),
        ("model.alpha=[1.0, 1.0, 1.0]", 'leave model.alpha out, or set model.pooling = "none"'),
    ],
)
def test_what_pooling_does_not_take_is_refused(override, message):
    with pytest.raises(SpecError, match=message):
        load_spec(MODELS / "verifier_threshold.toml", ['model.pooling="partial"', override])


def test_a_study_of_an_add_remove_spec_has_its_design():
    loaded = load_spec(MODELS / "verifier_threshold.toml", ['privacy.adjacency="add-remove"'])
    assert calibration_of(loaded).design.startswith("50 partitions, 2 questions, pooling none, add-remove")
