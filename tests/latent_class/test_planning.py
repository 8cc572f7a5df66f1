"""Plans of tables: the budget adds up, scores move by two at most, dependent pairs are found; what a fit costs."""

import math
from itertools import combinations, product

import numpy as np
import polars as pl
import pytest

from dpbayes.data import Domain, marginals
from dpbayes.errors import BudgetExceededError, InputError
from dpbayes.inference.sampling import settings_of
from dpbayes.latent_class import build_model, cost_of, sampler_defaults
from dpbayes.latent_class.planning import _scores, check_memory, plan, release_plan
from dpbayes.privacy import NoisyTable, Release, TwoSidedGeometric, read_release
from dpbayes.privacy.laws import DiscreteGaussian
from dpbayes.privacy.ledger import create_ledger
from dpbayes.privacy.sampling import Selection, noisy_top_k, selection_within

NAMES = [f"x{i}" for i in range(12)]
DOMAIN = Domain.from_levels({name: range(3) for name in NAMES})


def records(n=4000, seed=1):
    """Twelve attributes in six dependent pairs: x0 with x1, x2 with x3, ..."""
    rng = np.random.default_rng(seed)
    columns = {}
    for first, second in zip(NAMES[::2], NAMES[1::2], strict=True):
        columns[first] = rng.integers(0, 3, n)
        columns[second] = np.where(rng.random(n) < 0.6, columns[first], rng.integers(0, 3, n))
    return pl.DataFrame(columns)


@pytest.mark.parametrize("budget", [{"epsilon": 1.0}, {"rho": 0.02}])
@pytest.mark.parametrize("choose", [None, 6])
def test_the_budget_of_a_plan_is_spent_and_not_exceeded(budget, choose):
    release = release_plan(
        records(), plan(DOMAIN, n_records=4000, choose=choose, **budget), rng=np.random.default_rng(2)
    )
    (name, total), = budget.items()  # fmt: skip
    assert getattr(release, name) == pytest.approx(total, rel=1e-6)
    assert getattr(release, name) <= total * (1 + 1e-9)


def test_noise_is_split_where_the_expected_error_is_least():
    """Moving budget between two tables of a plan raises the sum of expected absolute errors (epsilon and rho)."""
    domain = Domain.from_levels({"a": range(2), "b": range(10), "c": range(2)})
    made = plan(domain, n_records=1000, epsilon=2.0, workload=[["a", "c"], ["a", "b"]])
    sizes = np.array([4, 20])
    rates = np.array([2.0 / law.spread for law in made.laws])
    assert rates.sum() == pytest.approx(2.0)
    best = (sizes / rates).sum()
    for moved in (-0.01, 0.01):
        assert (sizes / (rates + np.array([moved, -moved]))).sum() > best


def test_few_attributes_release_everything_and_many_choose():
    few = plan(Domain.from_levels({f"x{i}": range(2) for i in range(5)}), n_records=10_000, epsilon=1.0)
    assert few.selection is None and few.n_tables == 10
    many = plan(Domain.from_levels({f"x{i}": range(5) for i in range(50)}), n_records=50_000, rho=0.005)
    assert many.selection is not None and 49 <= many.selection.n_chosen < 1225
    everything = plan(
        Domain.from_levels({f"x{i}": range(5) for i in range(50)}),
        n_records=50_000,
        rho=0.005,
        workload=list(combinations([f"x{i}" for i in range(50)], 2)),
        choose=1225,
    )
    assert many.pair_error < everything.pair_error / 2


def test_private_selection_finds_the_dependent_pairs():
    release = release_plan(records(), plan(DOMAIN, n_records=4000, rho=0.05, choose=6), rng=np.random.default_rng(3))
    pairs = {table.attributes for table in release.tables if len(table.attributes) == 2}
    assert pairs == set(zip(NAMES[::2], NAMES[1::2], strict=True))


def test_public_records_choose_at_no_cost():
    made = plan(DOMAIN, n_records=4000, rho=0.05, choose=6, public=records(seed=9))
    assert made.selection is None
    assert {names for names in made.tables if len(names) == 2} == set(zip(NAMES[::2], NAMES[1::2], strict=True))


def test_one_record_moves_a_score_by_two_at_most():
    """Every replacement of one of eight records, over 3 x 3 cells, with arbitrary released attributes."""
    rng = np.random.default_rng(4)
    domain = Domain.from_levels({"a": range(3), "b": range(3)})
    base = rng.integers(0, 3, (8, 2))
    alone = marginals(pl.DataFrame(rng.integers(0, 3, (8, 2)), schema=["a", "b"]), [["a"], ["b"]], domain=domain)
    law = DiscreteGaussian(1.5)

    def score(rows):
        (table,) = marginals(pl.DataFrame(rows, schema=["a", "b"]), [["a", "b"]], domain=domain)
        return int(_scores([table], alone, 8, law)[0])

    before = score(base)
    moves = []
    for place, new in product(range(8), product(range(3), repeat=2)):
        rows = base.copy()
        rows[place] = new
        moves.append(abs(score(rows) - before))
    assert max(moves) == 2


@pytest.mark.parametrize("k", [1, 7])
def test_the_cost_of_a_selection_is_opendps(k):
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_noisy_top_k
    from opendp.measures import max_divergence, zero_concentrated_divergence
    from opendp.metrics import linf_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    chosen = selection_within(20, k, sensitivity=2.0, rho=0.01)
    space = vector_domain(atom_domain(T="i64")), linf_distance(T="i64")
    for measure, stated in ((max_divergence(), chosen.epsilon), (zero_concentrated_divergence(), chosen.rho)):
        measured = make_noisy_top_k(*space, measure, k=k, scale=chosen.scale).map(2)
        assert measured == pytest.approx(stated, rel=1e-9)
    assert chosen.rho <= 0.01


def test_the_first_choice_follows_the_exponential_mechanism():
    """20,000 simulated draws of the top 1 among four; chi-squared at a false-alarm rate of 1e-4."""
    from scipy.stats import chisquare

    scores, chosen = np.array([10, 8, 5, 0]), Selection(4, 1, scale=4.0, sensitivity=2.0)
    rng = np.random.default_rng(5)
    drawn = [noisy_top_k(scores, chosen, pure=True, rng=rng)[0] for _ in range(20_000)]
    expected = np.exp(scores / 4.0) / np.exp(scores / 4.0).sum()
    assert chisquare(np.bincount(drawn, minlength=4), 20_000 * expected).pvalue > 1e-4


def test_opendp_draws_where_no_generator_is_given():
    scores = np.array([0, 10_000, 5, 20_000])
    assert noisy_top_k(scores, Selection(4, 2, scale=1.0, sensitivity=2.0), pure=False, rng=None) == [3, 1]


def test_a_release_keeps_what_its_selection_cost(tmp_path):
    release = release_plan(records(), plan(DOMAIN, n_records=4000, rho=0.05, choose=3), rng=np.random.default_rng(6))
    back = read_release(release.write(tmp_path / "release.json"))
    assert back.digest == release.digest and back.selection == release.selection
    assert back.rho == release.rho and "selection" in back.privacy_record
    assert math.isclose(
        release.rho - release.selection.rho, sum(t.noise.rho(sensitivity=t.sensitivity) for t in release.tables)
    )


def test_a_ledger_books_every_round_before_anything_is_drawn(tmp_path):
    made = plan(DOMAIN, n_records=4000, epsilon=1.0, choose=3)
    ledger = create_ledger(tmp_path / "ledger.db", dataset="twelve", adjacency="replace-one", epsilon=1.5, delta=0.0)
    release = release_plan(records(), made, ledger=ledger)
    assert release.sampler == "opendp"
    assert len(ledger.entries()) == 12 + 3 + 3
    with pytest.raises(BudgetExceededError):
        release_plan(records(), made, ledger=ledger)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": 1.0, "rho": 1.0}, "give one of epsilon and rho"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"rho": 1.0, "choose": 67}, "choose must be a whole number from 1 to 66, got .*; there are 66 pairs"),
        ({"rho": 1.0, "n_records": 0}, "n_records must be a whole number of at least 1"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(InputError, match=message):
        plan(DOMAIN, **({"n_records": 100} | arguments))


# --- what a fit will take ---------------------------------------------------------------------------------------------


def many(attributes, levels):
    domain = Domain.from_levels({f"x{i}": tuple(range(levels)) for i in range(attributes)})
    return domain, list(combinations(domain.names, 2))


@pytest.mark.parametrize("likelihood", ["cells", "tables"])
def test_unknowns_and_cells_are_the_models(likelihood):
    domain, pairs = many(3, 3)
    tables = tuple(NoisyTable(domain.project(p), np.full((3, 3), 40), TwoSidedGeometric(4.0), 2.0, None) for p in pairs)
    model = build_model(
        Release(domain, tables, "replace-one", 360, "simulation"), likelihood=likelihood, overdispersion=False
    )
    found = cost_of(domain, pairs, likelihood=likelihood)
    point = model.initial_point()
    assert found.cells == 27
    assert found.unknowns == sum(np.size(value) for value in point.values())


def test_costs_grow_with_tables_levels_and_classes():
    small, larger = cost_of(*many(6, 3)), cost_of(*many(12, 6))
    assert small.minutes < larger.minutes and small.gigabytes < larger.gigabytes
    assert cost_of(*many(6, 3), n_classes=5).microseconds < cost_of(*many(6, 3), n_classes=15).microseconds


def test_minutes_follow_chains_moves_and_steps():
    least = cost_of(*many(12, 6), moves=1, max_steps=1).minutes
    for longer in ({"chains": 1024}, {"moves": 120}, {"max_steps": 800}, {"cores": 1}):
        assert cost_of(*many(12, 6), **longer).minutes > 1.3 * cost_of(*many(12, 6)).minutes > least


def test_what_does_not_fit_is_refused_with_what_would(monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: 1)
    with pytest.raises(InputError, match=r"GB, and this machine has 0\.0; release or fit fewer tables"):
        check_memory(cost_of(*many(3, 2)))


@pytest.mark.parametrize(
    ("attributes", "levels", "scale", "kept", "steps"),
    [
        (6, 2, 4.0, (576, 24, 12), 60),
        (8, 2, 100.0, (576, 24, 12), 60),
        (8, 2, 10.0, (576, 48, 12), 60),  # chains climb, cell by cell
        (8, 2, 4.0, (576, 24, 12), 60),  # all tables jointly
        (14, 8, 400.0, (896, 24, 8), 60),
        (14, 8, 40.0, (896, 12, 8), 60),
        (14, 8, 20.0, (896, 12, 8), 60),
        (14, 8, 4.0, (896, 12, 8), 60),  # the population varies
        (40, 10, 400.0, (512, 24, 8), 60),
        (40, 10, 4.0, (512, 12, 8), 60),
        (40, 10, 60.0, (512, 12, 8), 60),
    ],
)
def test_chains_and_their_steps_follow_classes_times_levels_and_noise(attributes, levels, scale, kept, steps):
    domain, pairs = many(attributes, levels)
    law = TwoSidedGeometric(scale)
    tables = tuple(NoisyTable(domain.project(p), np.full((levels, levels), 40), law, 2.0, None) for p in pairs)
    settings = sampler_defaults(Release(domain, tables, "replace-one", 40 * levels**2, "simulation"))
    assert settings.pop("method") == "many-chains"
    found = settings_of("many-chains", settings)
    assert (found.chains, found.tune, found.draws, found.max_steps) == (*kept, steps)
    assert found.target_accept == (0.95 if (attributes, scale) == (8, 4.0) else 0.9)  # 112 counts taken jointly
