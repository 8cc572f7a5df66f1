"""In every system: what can be refused is refused before anything is spent, and a release that was paid for is used."""

import os
import time
from pathlib import Path
from unittest import mock

import pytest
from pydantic import ValidationError

from dpbayes.errors import DPBayesError, ExistingRunError, InputError, SpecError
from dpbayes.privacy import mechanism
from dpbayes.privacy.ledger import create_ledger
from dpbayes.privacy.release import Release
from dpbayes.runs import execute, load_spec
from dpbayes.runs.execution import described, open_ledger_of, plan_lines
from dpbayes.runs.registry import SYSTEMS

MODELS = Path(__file__).resolve().parents[2] / "models"
# spec: what makes it small, settings that follow the release, settings that decide it.
CASES = {
    "acs_latent_class": ([], ["sampling.draws", "sampling.tune", "sampling.chains"], "privacy.epsilon=2.0"),
    "bloom_audience": (
        ["audience.n_people=500", "audience.shares=[0.4, 0.2]", "filters.n_bits=1000"],
        ["sampling.draws", "sampling.tune", "sampling.chains"],
        "filters.n_bits=1001",
    ),
    "verifier_threshold": (
        ["data.n_units=300", "privacy.n_partitions=10"],
        ["model.draws", "model.chains"],
        "privacy.n_partitions=11",
    ),
    "mvg_regression": (
        ["data.n=500"],
        ["regression.draws"],
        "privacy.epsilon=2.0",
    ),
    "ide_groups": ([], ["estimation.iterations", "synthesis.n_rows"], "groups.max_error=0.3"),
}


PROTECTS = {
    "acs_latent_class": "protects one row",
    "bloom_audience": "protects one position of the filters",
    "verifier_threshold": "protects one unit of column 'person' (all its rows)",
    "mvg_regression": "protects one row",
    "ide_groups": "protects one row",
}


def small(name, *overrides):
    return load_spec(MODELS / f"{name}.toml", [*CASES[name][0], *overrides])


def test_every_system_has_a_case():
    assert {load_spec(MODELS / f"{name}.toml").spec.system for name in CASES} == set(SYSTEMS)


STUDIES = sorted(path.stem for path in MODELS.glob("*.toml"))


def unbounded(schema, path=()):
    """Yield the numbers of a schema that may be arbitrarily small or large."""
    if isinstance(schema, list):
        for part in schema:
            yield from unbounded(part, path)
    elif isinstance(schema, dict):
        ends = ({"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"})
        if schema.get("type") in ("integer", "number") and not all(end & set(schema) for end in ends):
            yield path
        for key, part in schema.items():
            if key != "concentration":  # which has a check of its own
                yield from unbounded(part, (*path, key))


def numbers_of(tree, path=()):
    """Yield the path and the value of every number below a node of a spec."""
    if type(tree) in (int, float):
        yield path, tree
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from numbers_of(value, (*path, key))


@pytest.mark.parametrize("name", STUDIES)
def test_every_number_of_a_spec_is_bounded(name):
    loaded = load_spec(MODELS / f"{name}.toml", allow_python=True)
    assert not list(unbounded(loaded.module.Spec.model_json_schema()))


@pytest.mark.parametrize("name", STUDIES)
def test_every_number_of_a_study_is_refused_outside_of_its_bounds(name, tmp_path):
    loaded = load_spec(MODELS / f"{name}.toml", allow_python=True)
    found = list(numbers_of(loaded.spec.model_dump(mode="json", exclude_none=True)))
    assert found
    for path, value in found:
        for wrong in (-1e60, 1e60, 10**80, float("inf"), float("nan"), *([value + 0.5] if type(value) is int else [])):
            data = loaded.spec.model_dump(mode="json", exclude_none=True)
            node = data
            for key in path[:-1]:
                node = node[key]
            node[path[-1]] = wrong
            with pytest.raises((ValidationError, DPBayesError)):
                loaded.module.Spec.model_validate(data)
                pytest.fail(f"{path} = {wrong} is taken")


def counted_study(tmp_path):
    """Write a small study of confidential records; return its spec and its ledger."""
    (tmp_path / "records.csv").write_text("age,sex\n" + "0,f\n1,m\n" * 20)
    data = '[data]\nmicrodata = "records.csv"\nlevels = {age = [0, 1], sex = ["f", "m"]}\n'
    (tmp_path / "study.toml").write_text(
        f'system = "latent-class"\ntitle = "t"\n{data}' + '[privacy]\nepsilon = 1.0\nledger = "budget.db"\n'
    )
    ledger = create_ledger(tmp_path / "budget.db", epsilon=2.0, delta=0.0, adjacency="replace-one")
    return load_spec(tmp_path / "study.toml"), ledger


def test_ledgers_of_one_name_in_two_folders_keep_their_heads_apart(tmp_path):
    loaded, _ = counted_study(tmp_path)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        create_ledger(tmp_path / folder / "budget.db", epsilon=2.0, delta=0.0, adjacency="replace-one")
    names = [
        "budget.db",
        "a/budget.db",
        "b/budget.db",
        str(tmp_path / "a" / "budget.db"),
        "../" + tmp_path.name + "/budget.db",
    ]
    for name in names * 2:
        open_ledger_of(load_spec(loaded.path, [f'privacy.ledger="{name}"']))
    assert {"budget.db.head", "a-budget.db.head", "b-budget.db.head"} < {path.name for path in tmp_path.glob("*.head")}


def test_an_interrupt_between_paying_and_writing_says_what_it_cost(tmp_path, monkeypatch):
    loaded, ledger = counted_study(tmp_path)
    drawn = mechanism.release_values

    def interrupted(*values, rng=None):
        if rng is None:
            raise KeyboardInterrupt
        return drawn(*values, rng=rng)

    monkeypatch.setattr(mechanism, "release_values", interrupted)
    said = r"entry 1 of .* count as spent\. The same command draws a release anew, and pays"
    with pytest.raises(KeyboardInterrupt, match=said):
        execute(loaded, out=tmp_path / "run", progressbar=False, echo=lambda line: None)
    assert ledger.spent().unconfirmed == 1


def test_an_interrupt_while_the_release_is_written_says_that_it_was_paid_for(tmp_path, monkeypatch):
    loaded, ledger = counted_study(tmp_path)

    def interrupted(self, path):
        raise KeyboardInterrupt

    monkeypatch.setattr(Release, "write", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"its cost is spent, but it is not on disk.*draws a release anew"):
        execute(loaded, out=tmp_path / "run", progressbar=False, echo=lambda line: None)
    assert ledger.spent().unconfirmed == 0 and len(ledger.entries()) > 0


def test_a_disk_that_is_full_when_the_trace_is_written_leaves_no_half_and_keeps_the_release(
    tmp_path, no_file_longer_than
):
    loaded, lines = small("verifier_threshold"), []
    with no_file_longer_than(30_000), pytest.raises(OSError, match="File too large"):
        execute(loaded, out=tmp_path / "run", progressbar=False, echo=lines.append)
    partial = tmp_path / "run.partial"
    names = {path.name for path in partial.iterdir()}
    assert "release.json" in names and not [name for name in names if "trace" in name]
    paid = (partial / "release.json").read_bytes()
    result = execute(loaded, out=tmp_path / "run", progressbar=False, echo=lines.append)
    assert (result.folder / "release.json").read_bytes() == paid and "release: already drawn, used again" in lines


@pytest.mark.parametrize("name", CASES)
def test_the_terminal_says_in_every_system_what_a_release_protects(name):
    loaded = small(name)
    line = described(loaded, loaded.module.design(loaded.spec, MODELS))
    assert line.count("protects one ") == 1
    assert line.endswith(PROTECTS[name])


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("acs_latent_class", "model.concentration=[1e-320, 10.0]"),
        ("acs_latent_class", "model.concentration=[2.0, 1e-320]"),
        ("verifier_surface", "surface.alpha=[1.0, 1.0, 1e-320]"),
    ],
)
def test_priors_whose_draws_underflow_are_refused_with_the_spec(name, setting):
    with pytest.raises(SpecError, match=r"concentration|alpha"):
        load_spec(MODELS / f"{name}.toml", [setting])


def test_a_text_that_no_message_could_show_is_refused_in_a_short_one():
    for setting in ("privacy.ledger", "data.levels.sex"):
        with pytest.raises(SpecError, match="a text has at most 10,000 characters, got 20,000") as caught:
            load_spec(MODELS / "acs_latent_class.toml", [f'{setting}=["{"x" * 20_000}"]'])
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("persons_latent_class", 'data={{microdata = "r.csv", levels = {{x = [0, 1]}}, labels = {{{}}}}}'),
        ("mvg_regression", 'data={{file = "r.csv", ranges = {{{}}}}}'),
        (
            "ide_groups",
            'data={{public = "p.csv", private = "r.csv", levels = {{{}}}, by = "y", tables = "by-feature"}}',
        ),
    ],
)
def test_thousands_of_wrong_entries_are_refused_in_a_few_words(name, setting):
    entry = {"mvg_regression": "{} = [0.0, 1.0]", "ide_groups": '{} = ["0", "1"]'}.get(name, '{} = {{0 = "no"}}')
    entries = ", ".join(entry.format(f"column_{number}") for number in range(3000))
    started = time.process_time()
    with pytest.raises(SpecError) as caught:
        load_spec(MODELS / f"{name}.toml", [setting.format(entries)])
    assert len(str(caught.value)) < 10_000 and time.process_time() - started < 10


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, case in CASES.items() for key in case[1]])
def test_a_setting_that_no_computer_can_run_is_refused_before_anything_is_released(name, key, tmp_path):
    with pytest.raises(SpecError, match=rf"{key}: must be less than or equal to"):
        execute(small(name, f"{key}={10**18}"), out=tmp_path / "run", echo=lambda line: None)
    assert not list(tmp_path.iterdir())


SYNTHESES = {
    "ide": '[data]\npublic = "p.csv"\nprivate = "p.csv"\nby = "x"\ntables = "by-feature"\n'
    'levels = {x = ["0", "1"], y = ["0", "1"]}\n',
    "latent-class": '[data]\nmicrodata = "p.csv"\nlevels = {x = ["0", "1"], y = ["0", "1"]}\n',
}


@pytest.mark.parametrize("system", SYNTHESES)
def test_synthetic_records_that_memory_does_not_hold_are_refused_before_anything_is_released(
    tmp_path, monkeypatch, system
):
    real = os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda name: 1000 if name == "SC_PHYS_PAGES" else real(name))
    (tmp_path / "p.csv").write_text("x,y\n" + "0,1\n1,0\n" * 50)
    (tmp_path / "study.toml").write_text(
        f'system = "{system}"\ntitle = "t"\n{SYNTHESES[system]}[privacy]\nepsilon = 1.0\nledger = "budget.db"\n'
        "[synthesis]\nn_rows = 1_000_000\n"
    )
    ledger = create_ledger(tmp_path / "budget.db", epsilon=2.0, delta=0.0, adjacency="replace-one")
    loaded = load_spec(tmp_path / "study.toml")
    said = "1,000,000 synthetic records of 2 attributes would take"
    with pytest.raises(InputError, match=said):
        plan_lines(loaded)
    with pytest.raises(InputError, match=said):
        execute(loaded, out=tmp_path / "run", progressbar=False, echo=lambda line: None)
    assert not ledger.entries()


def test_draws_that_memory_does_not_hold_are_refused_before_anything_is_released(tmp_path, monkeypatch):
    real = os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda name: 250_000 if name == "SC_PHYS_PAGES" else real(name))
    loaded, ledger = counted_study(tmp_path)
    loaded = load_spec(loaded.path, ['sampling.method="nuts"', "sampling.draws=1000000", "sampling.chains=4"])
    for action in (plan_lines, lambda one: execute(one, out=tmp_path / "run", echo=lambda line: None)):
        with pytest.raises(InputError, match=r"4,000,000 draws of \d+ numbers each would take .*lower draws or chains"):
            action(loaded)
    assert not ledger.entries()


class _StoppedError(Exception):
    pass


QUESTION = 'questions=[{name="q",formula="wage ~ sex",coefficient="sex[T.female]",threshold=0.0%s}]'
# Of each system settings that follow the release, of every kind, and settings that decide it.
FOLLOWING = {
    "acs_latent_class": (
        *("title='t'", "model.n_classes=3", "model.profiles='dirichlet'", "model='file:mine.py'"),
        *("sampling.method='nuts'", "sampling.seed=2", "synthesis.n_rows=10", "synthesis.labels=true"),
        *("data.source='s'", f"privacy.ledger_head='{'0' * 64}'"),
    ),
    "bloom_audience": ("title='t'", "sampling.seed=2", "lattice={population=1000.0}", "data.source='s'"),
    "verifier_threshold": (
        *("title='t'", "model.alpha=[1.0, 2.0, 1.0]", "model.pooling='partial'", "model.draws=60"),
        *("pilot={embedded='wages', n_units=200}", "data.level_shares={sex={female=0.5}}", "data.n_units=200"),
        *("data.source='s'", f"privacy.ledger_head='{'0' * 64}'"),
    ),
    "mvg_regression": (
        *("title='t'", "regression.draws=60", "regression.seed=2", "data.source='s'"),
        "regression={predictors=['systolic_mmhg', 'male', 'bmi'], response='age'}",
    ),
    "ide_groups": (
        *("title='t'", "estimation.method='algorithm-1'", "estimation.strength=5.0", "estimation.iterations=60"),
        *("groups.n_jobs=2", "synthesis.format='csv'", "data.source='s'"),
    ),
    "ide_massachusetts": ("data.public='other.csv'", "estimation.pool=false", "synthesis.n_rows=10"),
}
DECIDING = {
    "acs_latent_class": ("privacy.noise='laplace'", "data={embedded='persons'}"),
    "bloom_audience": ("audience.seed=2", "filters.hash_seed=1", "privacy.delta=1e-4", "privacy.definition='quantile'"),
    "verifier_threshold": ("data.seed=2", "privacy.epsilon=2.0", QUESTION % ""),
    "mvg_regression": ("data.seed=2", "regression.intercept=2.0", "regression={predictors=['age'], response='bmi'}"),
    "ide_groups": ("data.size=700", "groups.max_information=0.2", "privacy.noise='laplace'"),
    "ide_massachusetts": ("data.by='SEX'", "data.private='other.csv'", "data.tables=[['SEX']]"),
}


def decided(name, *settings):
    return load_spec(MODELS / f"{name}.toml", settings).spec.release_settings


@pytest.mark.parametrize("name", FOLLOWING)
def test_only_what_decides_a_release_asks_for_another(name):
    for setting in FOLLOWING[name]:
        assert decided(name, setting) == decided(name), setting
    for setting in DECIDING[name]:
        assert decided(name, setting) != decided(name), setting


def test_what_only_warns_or_follows_explicit_tables_decides_no_release():
    assert decided("verifier_threshold", QUESTION % ",skew=1.0") == decided("verifier_threshold", QUESTION % "")
    tables = "data.tables=[['SEX', 'EDU']]"
    assert decided("ide_massachusetts", tables, "data.by='SEX'") == decided("ide_massachusetts", tables)


@pytest.mark.parametrize("system", ["ide", "latent-class"])
def test_new_settings_are_tried_on_the_release_that_was_paid_for(tmp_path, monkeypatch, system):
    (tmp_path / "p.csv").write_text("x,y\n" + "0,1\n1,0\n" * 50)
    (tmp_path / "study.toml").write_text(
        f'system = "{system}"\ntitle = "t"\n{SYNTHESES[system]}[privacy]\nepsilon = 1.0\n'
    )
    loaded = load_spec(tmp_path / "study.toml")
    monkeypatch.setattr(loaded.module, "fit", mock.Mock(side_effect=_StoppedError))
    with pytest.raises(_StoppedError):
        execute(loaded, out=tmp_path / "run", progressbar=False, echo=lambda line: None)
    paid, real = (tmp_path / "run.partial" / "release.json").read_bytes(), os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda name: 1000 if name == "SC_PHYS_PAGES" else real(name))
    with pytest.raises(InputError, match="1,000,000 synthetic records of 2 attributes would take"):
        execute(
            load_spec(tmp_path / "study.toml", ["synthesis.n_rows=1000000"]),
            out=tmp_path / "run",
            progressbar=False,
            echo=lambda line: None,
        )
    assert (tmp_path / "run.partial" / "release.json").read_bytes() == paid


@pytest.mark.parametrize("name", CASES)
def test_a_mended_spec_goes_on_with_the_release_that_was_paid_for(name, tmp_path, monkeypatch):
    def stop(*arguments, **settings):
        raise _StoppedError

    _, settings, deciding = CASES[name]
    values = (12, 14) if name == "acs_latent_class" else (50, 60)
    first = small(name, f"{settings[0]}={values[0]}")
    monkeypatch.setattr(first.module, "fit", stop)
    drawn = []
    for loaded in (first, small(name, f"{settings[0]}={values[1]}")):
        with pytest.raises(_StoppedError):
            execute(loaded, out=tmp_path / "run", progressbar=False, echo=lambda line: None)
        drawn.append((tmp_path / "run.partial" / "release.json").read_bytes())
    assert drawn[0] == drawn[1]
    assert (tmp_path / "run.partial" / "spec.toml").read_text() == loaded.resolved
    with pytest.raises(ExistingRunError, match=r"release\.json.*may have cost"):
        execute(small(name, deciding), out=tmp_path / "run", progressbar=False, echo=lambda line: None)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("sampling.chains=30", "chains must be a multiple of batches"),
        ("sampling.draws=1000", "trajectories must be at least draws"),
    ],
)
def test_settings_that_only_the_sampler_refuses_are_refused_with_the_spec(setting, message):
    with pytest.raises(SpecError, match=message):
        small("acs_latent_class", setting)
