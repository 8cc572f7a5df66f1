import contextlib
import copy
import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbayes.data import Domain, Marginal, datasets
from dpbayes.errors import BudgetExceededError, DamagedFileError, InputError
from dpbayes.privacy import (
    DiscreteGaussian,
    Gaussian,
    Laplace,
    NoisyTable,
    NoisyTotal,
    Publication,
    Release,
    TwoSidedGeometric,
    read_release,
    release_tables,
)
from dpbayes.privacy.envelope import MOST_BYTES, expect, record_digest
from dpbayes.privacy.ledger import create_ledger

TABLES = datasets.acs_tables()


def seeded(**options) -> Release:
    return release_tables(TABLES, rng=np.random.default_rng(3), **({"epsilon": 1.0} | options))


def test_epsilon_is_split_evenly_and_the_scale_is_sensitivity_over_epsilon():
    release = seeded()
    assert release.epsilon == 1.0
    assert release.n == 10_000
    assert release.n_public
    assert release.n_counts == 40
    for table in release.tables:
        assert table.epsilon == pytest.approx(0.1, rel=1e-15)
        assert table.sensitivity == 2
        assert table.noise.scale == pytest.approx(20.0, rel=1e-15)
        assert table.counts.dtype == np.int64


def test_shares_divide_the_budget():
    release = seeded(shares=[3, *[1] * 9])
    assert release.tables[0].epsilon == pytest.approx(0.25)
    assert release.epsilon == pytest.approx(1.0, rel=1e-15)


def test_noise_has_the_stated_spread():
    # 40 counts x 50 releases of variance v = 2 exp(1/s) / (exp(1/s) - 1)^2; the mean square of N draws has a relative
    # standard error of at most sqrt(5.1 / N) (kurtosis 6 of a Laplace law); 5 standard errors: false alarm below 1e-6.
    rng = np.random.default_rng(11)
    exact = np.concatenate([table.counts.ravel() for table in TABLES])
    squares = []
    for _ in range(50):
        release = release_tables(TABLES, epsilon=1.0, rng=rng)
        squares.append((np.concatenate([t.counts.ravel() for t in release.tables]) - exact) ** 2)
    variance = release.tables[0].noise.variance
    assert np.mean(squares) == pytest.approx(variance, rel=5 * np.sqrt(5.1 / 2000))


def test_a_real_release_is_drawn_by_opendp_and_differs_each_time():
    first, second = (release_tables(TABLES, epsilon=1.0) for _ in range(2))
    assert first.sampler == second.sampler == "opendp"
    assert first.digest != second.digest  # equal with probability below 1e-60


def test_add_remove_needs_a_share_for_n():
    with pytest.raises(InputError, match="number of records is confidential; pass total_share"):
        seeded(adjacency="add-remove")
    release = seeded(adjacency="add-remove", total_share=0.1)
    assert not release.n_public
    assert release.n.epsilon == pytest.approx(0.1)
    assert release.tables[0].sensitivity == 1
    assert release.tables[0].noise.scale == pytest.approx(1 / 0.09)
    assert release.epsilon == pytest.approx(1.0, rel=1e-15)
    with pytest.raises(InputError, match="leave total_share out under replace-one"):
        seeded(total_share=0.1)


@pytest.mark.parametrize("noise", ["laplace", "gaussian", "discrete-gaussian"])
def test_other_laws_take_their_own_budget(noise):
    pure = noise == "laplace"
    release = seeded(noise=noise) if pure else seeded(noise=noise, epsilon=None, rho=0.5)
    assert release.tables[0].noise.name == noise
    assert (release.epsilon is not None) == pure
    assert release.tables[0].counts.dtype == (np.int64 if noise == "discrete-gaussian" else np.float64)
    if not pure:
        assert sum(t.noise.rho(sensitivity=t.sensitivity) for t in release.tables) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": -1.0}, r"epsilon must be positive and finite, got -1.0; it is the total"),
        ({"epsilon": float("nan")}, "got nan"),
        ({"epsilon": float("inf")}, "got inf"),
        ({"epsilon": "1"}, "got '1'"),
        ({"epsilon": None}, "calibrated by epsilon alone"),
        ({"rho": 1.0}, "calibrated by epsilon alone"),
        ({"noise": "cauchy"}, "got 'cauchy'"),
        ({"adjacency": "neighbours"}, "neighbours"),
        ({"epsilon": 10**400}, "epsilon must be positive and finite, got 1000"),
        ({"shares": ["a", *[1] * 9]}, "shares must be a real number, got 'a'"),
        ({"adjacency": "add-remove", "total_share": "x"}, "total_share must be real and .*, got 'x'"),
        ({"shares": [1, 2]}, "10 tables, 2 shares"),
        ({"shares": [0, *[1] * 9]}, "shares must be positive"),
    ],
)
def test_bad_parameters_are_refused_before_any_noise(options, message):
    with pytest.raises(InputError, match=message):
        seeded(**options)


def test_a_ledger_is_written_before_and_after_the_draw_and_cannot_overspend(tmp_path):
    book = create_ledger(tmp_path / "book.db", epsilon=1.5, delta=0.0, adjacency="replace-one")
    release = release_tables(TABLES, epsilon=1.0, ledger=book, purpose="a test")
    entries = book.entries()
    assert len(entries) == 10
    assert not book.unconfirmed()
    assert {entry.digest for entry in entries} == {release.digest}
    assert book.remaining().epsilon == pytest.approx(0.5)
    head = book.head
    with pytest.raises(BudgetExceededError):
        release_tables(TABLES, epsilon=1.0, ledger=book)
    with pytest.raises(InputError, match="leave the ledger out of a simulation"):
        seeded(ledger=book)
    with pytest.raises(InputError, match="add-remove"):
        release_tables(TABLES, epsilon=0.1, ledger=book, adjacency="add-remove", total_share=0.1)
    assert book.head == head


@pytest.mark.parametrize(
    ("request_of", "message"),
    [
        ({"epsilon": 1e-17}, r"scale .* exceeds 2\*\*52"),
        ({"rho": 1e-34, "noise": "discrete-gaussian", "delta": 1e-7}, r"stddev .* exceeds 2\*\*52"),
        ({"epsilon": 1e-300, "noise": "laplace"}, "would overflow doubles"),
        ({"epsilon": 1.0, "delta": 1e-7}, "does not belong to TwoSidedGeometric"),
    ],
)
def test_a_release_that_cannot_be_drawn_costs_nothing(tmp_path, request_of, message):
    book = create_ledger(tmp_path / "book.db", epsilon=1.5, delta=1e-6, adjacency="replace-one")
    with pytest.raises(InputError, match=message):
        release_tables(TABLES, ledger=book, **request_of)
    assert book.entries() == []


@pytest.mark.parametrize("noise", ["discrete-gaussian", "gaussian"])
def test_a_book_of_plain_addition_charges_gaussian_tables_a_share_of_delta(tmp_path, noise):
    book = create_ledger(tmp_path / "book.db", epsilon=5.0, delta=1e-6, adjacency="add-remove")
    spend = {"rho": 0.01, "noise": noise, "adjacency": "add-remove", "total_share": 0.25, "ledger": book}
    with pytest.raises(InputError, match="pass delta="):
        release_tables(TABLES, **spend)
    assert book.entries() == []
    release_tables(TABLES, delta=4e-7, **spend)
    deltas = [entry.cost.delta for entry in book.entries()]
    assert len(deltas) == len(TABLES) + 1
    assert deltas[-1] == pytest.approx(1e-7)
    assert deltas[:-1] == pytest.approx([3e-7 / len(TABLES)] * len(TABLES))
    assert 0 < book.spent().basic_delta <= 4e-7
    assert 0 < book.spent().basic_epsilon < 5.0


def test_a_share_of_delta_without_a_book_is_refused():
    with pytest.raises(InputError, match="pass ledger= too"):
        release_tables(TABLES, rho=0.1, noise="gaussian", delta=1e-7)


def test_a_single_table_is_refused_with_the_remedy():
    with pytest.raises(InputError, match=r"got a single Marginal .*; pass \[table\]"):
        release_tables(TABLES[0], epsilon=1.0)


@pytest.mark.parametrize("n_tables", [3, 7, 10])
@pytest.mark.parametrize("epsilon", [0.1, 0.7, 1.1])
def test_a_release_may_spend_a_whole_book(tmp_path, n_tables, epsilon):
    book = create_ledger(tmp_path / "book.db", epsilon=epsilon, delta=0.0, adjacency="replace-one")
    release_tables(TABLES[:n_tables], epsilon=epsilon, ledger=book)
    assert len(book.entries()) == n_tables


def test_tables_that_disagree_on_n_are_refused():
    other = Marginal(Domain.from_levels({"x": (0, 1)}), [1, 2])
    with pytest.raises(InputError, match="disagree on the number of records"):
        release_tables([*TABLES, other], epsilon=1.0)


def test_json_round_trip_keeps_every_part(tmp_path):
    for release in (seeded(), seeded(noise="laplace"), seeded(adjacency="add-remove", total_share=0.2)):
        again = read_release(release.write(tmp_path / "release.json"))
        assert again.digest == release.digest
        assert again.domain == release.domain
        assert again.n == release.n
        for ours, theirs in zip(again.tables, release.tables, strict=True):
            np.testing.assert_array_equal(ours.counts, theirs.counts)
            assert ours.noise == theirs.noise


def test_a_release_holds_no_exact_count():
    # Noise of scale 2e9 hides every exact count: none may stand in the file.
    text = json.dumps(seeded(epsilon=1e-8).to_dict()["tables"])
    for table in TABLES:
        for count in table.counts.ravel():
            assert f" {count}," not in text and f"[{count}," not in text and f" {count}]" not in text


def test_an_edited_release_is_refused(tmp_path):
    path = seeded().write(tmp_path / "release.json")
    data = json.loads(path.read_text())
    data["tables"][0]["counts"][0][0] += 1
    path.write_text(json.dumps(data))
    with pytest.raises(DamagedFileError, match="digest does not match"):
        read_release(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null", '{"digest": 1}', "\x00\x01", "NaN", "[" * 10_000])
def test_files_that_are_no_release_are_refused(tmp_path, text):
    path = tmp_path / "release.json"
    path.write_text(text)
    with pytest.raises(DamagedFileError):
        read_release(path)


def places(node, path=()):
    yield path
    if isinstance(node, dict | list):
        for key in node if isinstance(node, dict) else range(len(node)):
            yield from places(node[key], (*path, key))


SMALL = release_tables(TABLES[:2], epsilon=1.0, rng=np.random.default_rng(0))
BASE = json.loads(json.dumps(SMALL.to_dict()))
junk = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**30), 10**30), st.floats(), st.text(max_size=4), st.just([]), st.just({})
)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return SMALL.write(tmp_path_factory.mktemp("release") / "release.json")


@settings(max_examples=300, derandomize=True)
@given(st.sampled_from([p for p in places(BASE) if p]), junk)
def test_a_forged_release_is_refused_or_reads_as_exactly_what_it_says(written, path, value):
    data = copy.deepcopy(BASE)
    node = data
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    file = written.with_name("forged.json")
    try:
        text = json.dumps(data | {"digest": record_digest(data)})
    except ValueError:  # NaN: no digest, no file
        return
    file.write_text(text)
    with contextlib.suppress(DamagedFileError):
        assert record_digest(read_release(file).to_dict()) == record_digest(data)


def flip(data, rng):
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 8, 64])):
        changed[rng.randrange(len(changed))] ^= rng.randrange(1, 256)
    return bytes(changed)


def other_character(data, rng):
    place = rng.randrange(len(data))
    return data[:place] + rng.choice(b'0123456789-.eE,:[]{} "tfn\n').to_bytes() + data[place + 1 :]


def cut(data, rng):
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.choice([1, 2, 40, len(data)]) :]


def insert(data, rng):
    place = rng.randrange(len(data))
    return data[:place] + rng.choice([rng.randbytes(3), b"0", b"-", b",", b"[", b'"digest": 1,']) + data[place:]


def repeat(data, rng):
    start, length = rng.randrange(len(data)), rng.choice([1, 10, 200])
    return data[: start + length] + data[start:]


def edit_the_record(data, rng):
    """Another value or a missing key anywhere, under the digest of the original."""
    record = json.loads(data)
    *way, last = rng.choice([place for place in places(record) if place])
    node = record
    for key in way:
        node = node[key]
    if rng.random() < 0.3:
        del node[last]
    else:
        node[last] = rng.choice([None, True, -1, 0, 1e300, 10**30, "", "x", [], {}, [node[last]], [[1], [1, 2]]])
    return json.dumps(record).encode()


DAMAGES = [flip, other_character, cut, insert, repeat, edit_the_record, edit_the_record]


def test_every_one_of_a_thousand_damaged_releases_is_refused(written, tmp_path):
    rng, data, path = random.Random(9), written.read_bytes(), tmp_path / "release.json"
    original, refused = json.loads(data), 0
    while refused < 1000:
        changed = rng.choice(DAMAGES)(data, rng)
        with contextlib.suppress(ValueError):
            # White space, or the spelling of the same value: not damaged, so not counted.
            if repr(json.loads(changed)) == repr(original) and changed.count(b'"digest"') == 1:
                path.write_bytes(changed)
                assert read_release(path).digest == original["digest"]
                continue
        path.write_bytes(changed)
        with pytest.raises(DamagedFileError) as refusal:
            read_release(path)
        assert len(str(refusal.value)) < 2000
        refused += 1


def test_a_file_larger_than_any_release_is_refused_unread(tmp_path):
    path = tmp_path / "release.json"
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(DamagedFileError, match="no release file has more than 1,073,741,824"):
        read_release(path)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 400, "9" * 5000])
def test_numbers_beyond_the_doubles_are_refused(written, tmp_path, number):
    text = written.read_text()
    assert "4.0" in text
    path = tmp_path / "release.json"
    path.write_text(text.replace("4.0", number))
    with pytest.raises(DamagedFileError) as refusal:
        read_release(path)
    assert len(str(refusal.value)) < 1000


def test_the_refusal_of_an_unknown_key_shows_its_beginning():
    with pytest.raises(DamagedFileError, match="unknown: ") as refusal:
        expect({"counts": 1, "x" * 20_000: 1}, "counts", "a release")
    assert len(str(refusal.value)) < 1000


@pytest.mark.parametrize(("old", "new"), [("4.0", "4"), ("2,", "2.0,"), ('"public": true', '"public": 1')])
def test_another_type_of_the_same_number_is_another_record(written, tmp_path, old, new):
    text = written.read_text()
    assert old in text
    (tmp_path / "release.json").write_text(text.replace(old, new, 1))
    with pytest.raises(DamagedFileError):
        read_release(tmp_path / "release.json")


def test_a_release_cannot_contradict_itself():
    domain = Domain.from_levels({"x": (0, 1)})
    law = TwoSidedGeometric(2.0)
    with pytest.raises(InputError, match="is on the integers"):
        NoisyTable(domain, [0.5, 1.0], law, 2.0, 1.0)
    with pytest.raises(InputError, match="not a finite number"):
        NoisyTable(domain, [np.inf, 1.0], Laplace(2.0), 2.0, 1.0)
    with pytest.raises(InputError, match="sensitivity of table x"):
        NoisyTable(domain, [1, 1], law, 0.0, 1.0)
    table = NoisyTable(domain, [1, 1], law, 2.0, 1.0)
    for n in (0, 2**53 + 1, 10**400, 10**5000):
        with pytest.raises(InputError, match="n must be a whole number"):
            Release(domain, (table,), "replace-one", n, "opendp")
    with pytest.raises(InputError, match="cannot be public under add-remove"):
        Release(domain, (table,), "add-remove", 10, "opendp")
    with pytest.raises(InputError, match="levels that are not the domain's"):
        Release(Domain.from_levels({"x": (0, 1, 2)}), (table,), "replace-one", 10, "opendp")


X = Domain.from_levels({"x": (0, 1)})


@pytest.mark.parametrize("law_type", [TwoSidedGeometric, Laplace])
@pytest.mark.parametrize("sensitivity", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1 / 3, 7.0])
def test_an_epsilon_is_never_below_the_laws_own(law_type, sensitivity, epsilon):
    law = law_type.from_epsilon(epsilon, sensitivity=sensitivity)
    for stated in (epsilon, epsilon * (1 - 1e-13), 2 * epsilon):
        assert NoisyTable(X, [51, 49], law, sensitivity, stated).epsilon == stated
        assert NoisyTotal(100, law, sensitivity, stated).epsilon == stated
    for stated in (epsilon * (1 - 1e-11), 0.001 * epsilon):
        with pytest.raises(InputError, match=r"epsilon of table x must be at least sensitivity / scale = .*, got"):
            NoisyTable(X, [51, 49], law, sensitivity, stated)
        with pytest.raises(InputError, match="epsilon of the number of records must be at least"):
            NoisyTotal(100, law, sensitivity, stated)


@pytest.mark.parametrize("law", [Gaussian(2.0), DiscreteGaussian(2.0)])
def test_a_gaussian_law_has_no_epsilon(law):
    assert NoisyTable(X, [51, 49], law, 2.0, None).epsilon is None
    with pytest.raises(InputError, match=r"must be None under .*Gaussian"):
        NoisyTable(X, [51, 49], law, 2.0, 100.0)


@pytest.mark.parametrize(
    ("law", "adjacency", "least"),
    [
        (TwoSidedGeometric(2.0), "replace-one", 2.0),
        (Laplace(2.0), "add-remove", 1.0),
        (Gaussian(2.0), "replace-one", 2**0.5),
        (DiscreteGaussian(2.0), "add-remove", 1.0),
    ],
)
def test_a_table_of_records_changes_as_much_as_one_record_changes_it(law, adjacency, least):
    n = 100 if adjacency == "replace-one" else NoisyTotal(100, Laplace(1.0), 1.0, 1.0)
    for sensitivity in (least, 3 * least):
        Release(X, (NoisyTable(X, [51, 49], law, sensitivity, None),), adjacency, n, "opendp")
    short = NoisyTable(X, [51, 49], law, 0.9 * least, None)
    with pytest.raises(InputError, match=rf"sensitivity of table x must be at least {least:.6g} .* under {adjacency}"):
        Release(X, (short,), adjacency, n, "opendp")
    # A partition is not a record: how much one record changes it is the mechanism's own matter.
    assert Release(X, (short,), "replace-one", 100, "opendp", unit="partition").n == 100


def test_the_number_of_records_changes_by_one_under_add_remove():
    table = NoisyTable(X, [51, 49], Laplace(2.0), 1.0, 0.5)
    with pytest.raises(InputError, match="sensitivity of the number of records must be at least 1 "):
        Release(X, (table,), "add-remove", NoisyTotal(100, Laplace(1.0), 0.5, 0.5), "opendp")


def test_a_written_release_that_understates_its_cost_does_not_read(tmp_path):
    table = NoisyTable(X, [51, 49], TwoSidedGeometric(2.0), 2.0, 1.0)
    record = Release(X, (table,), "replace-one", 100, "opendp").to_dict()
    for change in ({"epsilon": 0.001}, {"sensitivity": 1.0, "epsilon": 0.5}):
        forged = record | {"tables": [record["tables"][0] | change]}
        path = tmp_path / "release.json"
        path.write_text(json.dumps(forged | {"digest": record_digest(forged)}))
        with pytest.raises(DamagedFileError, match="must be at least"):
            read_release(path)


def test_a_release_shows_its_cost():
    page = seeded()._repr_html_()
    assert "epsilon 1" in page
    assert "simulation" in page
    assert "citizenship x age" in page


@pytest.mark.parametrize(("law", "threshold", "limit"), [
    (TwoSidedGeometric(3.0), 20, 19.5), (TwoSidedGeometric(3.0), 19.2, 19.5), (Laplace(3.0), 19.2, 19.2),
    (Laplace(3.0), None, -np.inf),
])  # fmt: skip
def test_what_is_held_back_lies_below_the_limit(law, threshold, limit):
    domain = Domain.from_levels({"x": range(4)})
    table = NoisyTable(domain, [25, 30, 40, 20 if threshold else -3], law, None, None, None, threshold)
    assert table.limit == limit and not table.withheld.any()
    noisy = np.array([19, 20, 18, 35])
    shown = table.held_back(noisy)
    np.testing.assert_array_equal(np.isnan(shown), noisy < limit)
    np.testing.assert_array_equal(shown[noisy >= limit], noisy[noisy >= limit])


def test_a_table_with_counts_held_back_says_nothing_of_the_number_of_records():
    domain, stated = Domain.from_levels({"x": range(2)}), Publication("An office", "here", "2026", "as stated")
    law, n = TwoSidedGeometric(3.0), NoisyTotal(120, TwoSidedGeometric(3.0), 1.0, None)
    whole = NoisyTable(domain, [50, 60], law, None, None)
    some = NoisyTable(domain, [np.nan, 60], law, None, None, None, 40)
    sizes = [
        Release(domain, (table,), "as published", n, "published", publication=stated).estimated_size
        for table in (whole, some)
    ]
    assert sizes[0] == pytest.approx((120 * 2 / 3 + 110 / 3, (law.variance * 2 / 3) ** 0.5))
    assert sizes[1] == pytest.approx((120, law.variance**0.5))
