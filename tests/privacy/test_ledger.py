"""The budget book: what it accepts, refuses and remembers."""

import csv
import datetime
import inspect
import io
import math
import pickle
import random
import subprocess
import sys
import threading
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbayes.errors import BudgetExceededError, DPBayesError, InputError, LedgerError
from dpbayes.privacy import DiscreteGaussian, Gaussian, Laplace, TwoSidedGeometric
from dpbayes.privacy.ledger import EPOCH, Guarantee, Ledger, LedgerTerms, check_budget, create_ledger, open_ledger
from dpbayes.privacy.ledger_cost import Cost, Spending
from dpbayes.privacy.mechanism import Part, reserve_draw_confirm

DIGEST = "0123456789abcdef" * 4


@pytest.fixture
def make(tmp_path):
    def make(epsilon=1.0, delta=0.0, adjacency="replace-one", composition="basic", **more):
        path = tmp_path / f"book{len(list(tmp_path.iterdir()))}.db"
        return create_ledger(path, epsilon=epsilon, delta=delta, adjacency=adjacency, composition=composition, **more)

    return make


def guarantee(epsilon, **more):
    return {
        "mechanism": "randomized response",
        "law": Guarantee(epsilon),
        "sensitivity": None,
        "adjacency": "replace-one",
        "purpose": "test",
    } | more


def geometric(scale, **more):
    return (
        guarantee(1.0) | {"mechanism": "two-sided-geometric", "law": TwoSidedGeometric(scale), "sensitivity": 2} | more
    )


@pytest.mark.parametrize("composition", ["basic", "tight"])
def test_a_cost_beyond_the_doubles_is_refused_in_words(make, composition):
    book = make(composition=composition)
    with pytest.raises(BudgetExceededError, match=r"epsilon inf .* nothing was recorded"):
        book.reserve(**geometric(1.0, mechanism="laplace", law=Laplace(5e-324), sensitivity=1e300))
    assert book.entries() == [] and book.spent().epsilon == 0.0


# --- reserve, draw, confirm ---


def test_a_reservation_is_on_disk_before_any_noise_is_drawn(make):
    book = make()
    entry = book.reserve(**geometric(20.0))
    # Another process, looking while the noise is being drawn.
    seen = open_ledger(book.path)
    assert [release.entry for release in seen.unconfirmed()] == [entry]
    assert seen.spent().epsilon == 0.1 and seen.spent().unconfirmed == 1
    book.confirm(entry, DIGEST)
    assert open_ledger(book.path).unconfirmed() == []
    assert open_ledger(book.path).entries()[0].digest == DIGEST


def test_an_unconfirmed_reservation_counts_as_spent_and_is_reported(make):
    book = make()
    book.reserve(**geometric(4.0))
    again = open_ledger(book.path)
    assert again.spent().basic_epsilon == 0.5 and again.remaining().epsilon == 0.5
    assert [release.purpose for release in again.unconfirmed()] == ["test"]
    with pytest.raises(BudgetExceededError):
        again.reserve(**geometric(3.9))


def test_one_digest_confirms_several_entries_at_once_or_none(make):
    book = make()
    entries = book.reserve_all([geometric(20.0)] * 4)
    book.confirm(entries[0], DIGEST)
    head = book.head
    for wrong in (entries, [entries[1], entries[1]], [entries[2], 99]):
        with pytest.raises(InputError):
            book.confirm(wrong, DIGEST)
    assert book.head == head and book.spent().unconfirmed == 3
    book.confirm(entries[1:], DIGEST)
    assert book.spent().unconfirmed == 0 and {r.digest for r in book.entries()} == {DIGEST}


def test_what_remains_can_be_asked_for_in_either_reading(make):
    for composition in ("basic", "tight"):
        book = make(composition=composition)
        book.reserve(**guarantee(0.9))  # 1/10 is left, and the double 0.1 is a little more
        left = book.remaining().epsilon
        assert left == pytest.approx(0.1, rel=1e-15)
        book.reserve(**geometric(TwoSidedGeometric.from_epsilon(left, sensitivity=2).scale))
        assert book.remaining().epsilon < 1e-15


def test_confirming_twice_or_nothing_is_refused(make):
    book = make()
    entry = book.reserve(**geometric(20.0))
    book.confirm(entry, DIGEST)
    head = book.head
    for wrong, message in (
        (entry, "confirmed before"),
        (0, "no reservation"),
        (99, "no reservation"),
        (True, "no res"),
    ):
        with pytest.raises(InputError, match=message):
            book.confirm(wrong, DIGEST)
    with pytest.raises(InputError, match="64 lower-case hexadecimal"):
        book.confirm(book.reserve(**geometric(20.0)), "sha256:xyz")
    assert len(book.entries()) == 2 and book.head != head


def test_several_releases_are_recorded_together_or_not_at_all(make):
    book = make()
    entries = book.reserve_all([geometric(20.0)] * 5)
    assert entries == [1, 2, 3, 4, 5]
    head = book.head
    with pytest.raises(BudgetExceededError):
        book.reserve_all([geometric(20.0)] * 6)
    with pytest.raises(InputError):
        book.reserve_all([geometric(20.0), geometric(20.0, adjacency="add-remove")])
    assert book.head == head and book.reserve_all([]) == []
    book.reserve_all([geometric(20.0)] * 5)
    assert book.remaining().epsilon == 0.0


# --- the decision ---


def test_ten_requests_of_a_tenth_fit_a_budget_of_one_exactly(make):
    book = make(epsilon=1.0)
    for _ in range(10):  # ten doubles of 0.1 add up to 0.9999999999999999, exactly they are more than 1
        book.reserve(**guarantee(0.1))
    assert book.spent().basic_epsilon == 1.0 and book.remaining().epsilon == 0.0
    with pytest.raises(BudgetExceededError, match=r"left by plain addition under replace-one are epsilon 0 of 1 "):
        book.reserve(**guarantee(1e-300))


def test_a_refusal_says_what_was_asked_and_what_is_left_and_records_nothing(make):
    book = make(epsilon=1.0, delta=1e-6)
    book.reserve(**geometric(5.0))
    head = book.head
    with pytest.raises(BudgetExceededError) as refusal:
        book.reserve(**geometric(2.5))
    text = str(refusal.value)
    assert "asks for epsilon 0.8" in text and "epsilon 0.6 of 1 " in text and "larger noise scale" in text
    assert book.head == head and isinstance(refusal.value, ValueError)


def test_a_rounding_is_named_with_its_remedy(make):
    book = make(epsilon=0.3)
    law = Laplace(math.nextafter(1 / 0.3, 0))
    with pytest.raises(BudgetExceededError, match="a rounding of doubles"):
        book.reserve(**guarantee(1.0, law=law, sensitivity=1.0))
    book.reserve(**guarantee(1.0, law=Laplace(math.nextafter(law.scale, math.inf)), sensitivity=1.0))


@pytest.mark.parametrize("composition", ["basic", "tight"])
def test_another_adjacency_is_refused(make, composition):
    book = make(adjacency="add-remove", composition=composition)
    with pytest.raises(InputError, match="stated under replace-one and this ledger counts under add-remove"):
        book.reserve(**geometric(20.0))
    assert book.entries() == []


def test_gaussians_need_a_share_of_delta_under_plain_addition(make):
    book = make(epsilon=4.0, delta=1e-5)
    law = {"mechanism": "gaussian", "law": Gaussian(3.8), "sensitivity": 1.0}
    with pytest.raises(InputError, match=r"pass delta= \(the ledger has 1e-05 left\)"):
        book.reserve(**guarantee(1.0) | law)
    book.reserve(**guarantee(1.0) | law | {"delta": 1e-5})
    # sigma 3.7306 costs exactly (1, 1e-5): ANCHORS; 3.8 a little less.
    assert 0.97 < book.spent().basic_epsilon < 1 and book.spent().basic_delta == 1e-5
    with pytest.raises(BudgetExceededError):
        book.reserve(**guarantee(1.0) | law | {"delta": 1e-9})


def test_tight_composition_admits_what_plain_addition_cannot(make):
    basic, tight = make(delta=1e-6), make(delta=1e-6, composition="tight")
    request = geometric(200.0, count=100)  # 100 times 0.01: the sum is 1
    for book in (basic, tight):
        book.reserve(**request)
    with pytest.raises(BudgetExceededError, match=r"epsilon 0 of 1 "):
        basic.reserve(**request)
    tight.reserve(**request)
    spent = tight.spent()
    assert spent.basic_epsilon == 2.0 and spent.epsilon == spent.tight_epsilon < 0.7
    admitted = 2
    while True:
        try:
            tight.reserve(**request)
        except BudgetExceededError as refusal:
            assert "tight composition" in str(refusal)
            break
        admitted += 1
    assert tight.spent().tight_epsilon <= 1.0 and admitted > 3


def test_what_remains_certainly_fits(make):
    book = make(epsilon=2.0, delta=1e-6, composition="tight")
    book.reserve(**geometric(100.0, count=60))
    left = book.remaining().epsilon
    assert left > 1.2
    book.reserve(**guarantee(left))
    assert book.spent().tight_epsilon <= 2.0


GAUSSIAN = {"law": Gaussian.from_epsilon(0.6, delta=1e-12, sensitivity=1.0), "sensitivity": 1.0}
DISCRETE = {"law": DiscreteGaussian.from_epsilon(0.3, delta=1e-12, sensitivity=1.0), "sensitivity": 1.0}
WIDE = {"law": TwoSidedGeometric(106.0), "sensitivity": 2, "count": 30}


@pytest.mark.parametrize(
    "delta", [1e-6, 1e-12, *(pytest.param(delta, marks=pytest.mark.slow) for delta in (1e-9, 1e-10, 1e-30))]
)
@pytest.mark.parametrize(
    "spent",
    [
        [GAUSSIAN],
        [DISCRETE],
        [GAUSSIAN, guarantee(0.05, delta=0.0)],
        [WIDE],
        [WIDE, guarantee(0.1), guarantee(0.05, law=Laplace(50.0), sensitivity=1.0)],
        [guarantee(0.1, law=Guarantee(0.1, 1e-31)), WIDE],
    ],
    ids=["Gaussian", "discrete Gaussian", "Gaussian and pure", "geometric", "three pure laws", "failure"],
)
def test_what_remains_certainly_fits_in_every_pure_form(make, spent, delta):
    book = make(epsilon=4.0, delta=delta, composition="tight")
    for request in spent:
        book.reserve(**(guarantee(1.0) | request))
    left = book.remaining().epsilon
    assert left > 0
    forms = [
        Cost(Guarantee(left), None),
        Cost(Laplace.from_epsilon(left, sensitivity=1.0), 1.0),
        Cost(TwoSidedGeometric.from_epsilon(left, sensitivity=2.0), 2.0),
    ]
    spending = Spending().add(entry.cost for entry in book.entries())
    for form in forms:
        check_budget(spending, [form], book.terms)
        with pytest.raises(BudgetExceededError):  # the rule admits what remains, not more than the total
            check_budget(spending, [form, Cost(Guarantee(4.0), None)], book.terms)
    book.reserve(**guarantee(left))
    assert book.remaining().epsilon < 1e-3


def test_a_tight_book_at_delta_zero_is_a_book_of_pure_mechanisms(make):
    book = make(composition="tight")
    for _ in range(10):
        book.reserve(**guarantee(0.1))
    assert book.spent().tight_epsilon == 1.0
    with pytest.raises(BudgetExceededError):
        book.reserve(**guarantee(1e-9))
    with pytest.raises(BudgetExceededError, match="costs epsilon inf at delta 0"):
        make(composition="tight").reserve(**guarantee(1.0, law=DiscreteGaussian(100.0), sensitivity=1.0))


@settings(max_examples=200, deadline=None)
@given(
    st.decimals("0.01", "5", places=2),
    st.lists(st.decimals("0.001", "1.5", places=3), min_size=1, max_size=60),
    st.integers(1, 10),
)
def test_plain_addition_never_overspends_and_never_refuses_what_fits(total, requests, count):
    """The book's decisions against decimal arithmetic."""
    terms = LedgerTerms("0" * 32, float(total), 0.0, "add-remove", "basic", "d", EPOCH)
    spending, exact = Spending(), Decimal(0)
    for epsilon in requests:
        cost = Cost(Guarantee(float(epsilon)), None, count=count)
        fits = exact + count * epsilon <= total
        if fits:
            check_budget(spending, [cost], terms)
            spending, exact = spending.add([cost]), exact + count * epsilon
        else:
            with pytest.raises(BudgetExceededError):
                check_budget(spending, [cost], terms)
    assert spending.epsilon == Fraction(exact) <= Fraction(total)


@settings(max_examples=300, deadline=None)
@given(st.floats(1e-6, 1e3), st.integers(1, 4), st.sampled_from([TwoSidedGeometric, Laplace]))
def test_a_law_calibrated_to_the_whole_budget_fits_it(epsilon, sensitivity, law):
    terms = LedgerTerms("0" * 32, epsilon, 0.0, "add-remove", "basic", "d", EPOCH)
    check_budget(Spending(), [Cost(law.from_epsilon(epsilon, sensitivity=sensitivity), sensitivity)], terms)


# --- what a request may say ---


@pytest.mark.parametrize(
    "change",
    [
        {"mechanism": "Ümlaut"},
        {"mechanism": ""},
        {"mechanism": 3},
        {"purpose": ""},
        {"purpose": "   "},
        {"purpose": "two\nlines"},
        {"purpose": "\x1b[2J"},
        {"purpose": "x" * 501},
        {"purpose": "\ud800"},
        {"purpose": "right-to-left \u202e"},
        {"count": 0},
        {"count": 2.0},
        {"count": True},
        {"count": 10**10},
        {"sensitivity": 0},
        {"sensitivity": -1},
        {"sensitivity": math.nan},
        {"sensitivity": math.inf},
        {"sensitivity": None},
        {"sensitivity": 1.5},
        {"law": "geometric"},
        {"law": None},
        {"law": Guarantee(0.1)},
        {"delta": 1e-6},
        {"delta": -1e-6},
        {"adjacency": "zero-out"},
        {"adjacency": None},
        {"seed": 7},
    ],
)
def test_bad_requests_are_refused_and_leave_no_trace(make, change):
    book = make()
    head = book.head
    with pytest.raises(InputError):
        book.reserve_all([geometric(20.0) | change])
    assert book.head == head


def test_reserve_has_exactly_the_arguments_that_a_request_may_have(make):
    names = set(inspect.signature(Ledger.reserve).parameters) - {"self"}
    with pytest.raises(InputError) as refusal:
        make().reserve_all([{}])
    assert all(repr(name) in str(refusal.value) for name in names - {"count", "delta"})


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 0},
        {"epsilon": -1.0},
        {"epsilon": math.inf},
        {"epsilon": "1"},
        {"delta": 1.0},
        {"delta": -1e-9},
        {"delta": math.nan},
        {"adjacency": "both"},
        {"composition": "rdp"},
        {"dataset": ""},
        {"dataset": "a\x00b"},
    ],
)
def test_bad_terms_create_no_file(tmp_path, change):
    terms = {"epsilon": 1.0, "delta": 0.0, "adjacency": "add-remove"} | change
    with pytest.raises(InputError):
        create_ledger(tmp_path / "book.db", **terms)
    assert list(tmp_path.iterdir()) == []


# --- creation, opening, sharing ---


def test_an_existing_path_is_never_overwritten(make, tmp_path):
    book = make()
    book.reserve(**geometric(20.0))
    before = book.path.read_bytes()
    with pytest.raises(LedgerError, match="never overwritten"):
        create_ledger(book.path, epsilon=100.0, delta=0.0, adjacency="replace-one")
    assert book.path.read_bytes() == before
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    with pytest.raises(LedgerError):
        create_ledger(other, epsilon=1.0, delta=0.0, adjacency="replace-one")
    assert other.read_text() == "mine"


def test_a_book_keeps_its_terms(make):
    start = datetime.datetime.now(datetime.UTC)
    terms = open_ledger(make(epsilon=0.7, delta=1e-7, adjacency="add-remove", dataset="Zensus 2022 – Köln").path).terms
    assert (terms.epsilon, terms.delta, terms.adjacency, terms.composition) == (0.7, 1e-7, "add-remove", "basic")
    assert terms.dataset == "Zensus 2022 – Köln"
    assert start <= datetime.datetime.fromisoformat(terms.created) <= datetime.datetime.now(datetime.UTC)


def test_the_path_may_hold_any_character(tmp_path):
    path = tmp_path / "a book?mode=ro#50% – é.db"
    create_ledger(path, epsilon=1.0, delta=0.0, adjacency="replace-one").reserve(**geometric(20.0))
    assert open_ledger(path).spent().epsilon == 0.1 and [p.name for p in tmp_path.iterdir()] == [path.name]


def test_two_objects_see_each_other_and_cannot_spend_twice(make):
    first = make()
    second = open_ledger(first.path)
    first.reserve(**guarantee(0.6))
    with pytest.raises(BudgetExceededError, match=r"epsilon 0[.]4 of 1 "):
        second.reserve(**guarantee(0.6))
    second.confirm(1, DIGEST)
    assert first.unconfirmed() == [] and first.head == second.head


def test_threads_share_a_book(make):
    book = make()
    refused = []

    def work():
        for _ in range(10):
            try:
                book.confirm(book.reserve(**guarantee(0.02)), DIGEST)
            except BudgetExceededError as error:
                refused.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 30 and book.spent().epsilon == 1.0 and book.spent().unconfirmed == 0


def test_a_book_survives_pickling(make):
    book = make()
    pickle.loads(pickle.dumps(book)).reserve(**geometric(20.0))
    assert book.spent().releases == 1


def test_the_html_form_escapes_what_people_wrote(make):
    book = make(dataset="<script>alert(1)</script>")
    book.reserve(**geometric(20.0, purpose="<b>bold</b>"))
    html = book._repr_html_()
    assert "<script>" not in html and "&lt;b&gt;bold&lt;/b&gt;" in html
    assert "counts as spent" in html


def test_a_spreadsheet_runs_no_formula_of_the_csv_form(make):
    book = make()
    for purpose in ("=HYPERLINK(1)", "+1", "-1", "@sum", "a=b"):
        book.reserve(**geometric(100.0, purpose=purpose))
    rows = list(csv.DictReader(io.StringIO(book.to_csv())))
    assert [row["purpose"] for row in rows] == ["'=HYPERLINK(1)", "'+1", "'-1", "'@sum", "a=b"]
    assert book.entries()[0].purpose == "=HYPERLINK(1)"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupt_between_reserving_and_the_release_says_that_the_cost_is_spent(make, error):
    book = make()

    def draw():
        raise error

    parts = [Part(TwoSidedGeometric(20.0), 2), Part(TwoSidedGeometric(40.0), 2)]
    with pytest.raises(error) as caught:
        reserve_draw_confirm(
            draw, parts, mechanism="m", adjacency="replace-one", purpose="p", rng=None, ledger=book, delta=0.0
        )
    assert caught.value.__notes__ == [
        f"The cost was reserved before this: entries 1 to 2 of {book.path} count as spent."
    ]
    assert book.spent().unconfirmed == 2


@pytest.mark.parametrize("huge", [10**5000, -(10**5000), 10**400], ids=["5000", "minus 5000", "400"])
def test_numbers_beyond_every_double_are_one_clear_error(make, tmp_path, huge):
    book = make()
    for call in (
        lambda: create_ledger(tmp_path / "new.db", epsilon=huge, delta=0.0, adjacency="replace-one"),
        lambda: create_ledger(tmp_path / "new.db", epsilon=1.0, delta=huge, adjacency="replace-one"),
        lambda: book.reserve(**geometric(20.0, count=huge)),
        lambda: book.reserve(**geometric(20.0, sensitivity=huge)),
        lambda: book.reserve(**geometric(20.0, purpose=huge)),
        lambda: book.reserve(**geometric(20.0, mechanism=huge)),
        lambda: book.confirm(huge, DIGEST),
        lambda: book.confirm([huge, huge], DIGEST),
        lambda: open_ledger(book.path, expected_head=huge),
    ):
        with pytest.raises(InputError):
            call()


def test_a_book_of_plain_addition_needs_no_slow_library(make):
    book = make()
    code = (
        "import sys; from dpbayes.privacy.ledger import open_ledger, Guarantee\n"
        f"open_ledger({str(book.path)!r}).reserve(mechanism='m', law=Guarantee(0.1), sensitivity=None,"
        " adjacency='replace-one', purpose='p')\n"
        "print(sorted({'scipy', 'dp_accounting', 'pymc', 'pytensor', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]" and book.spent().epsilon == 0.1


def test_random_histories_agree_with_a_plain_model(make):
    """A few hundred random steps against a list and a sum."""
    rng = random.Random(20261120)
    book = make(epsilon=3.0)
    model, confirmed, total = [], {}, Fraction(0)
    for _ in range(300):
        if rng.random() < 0.5:
            epsilon = Fraction(rng.randint(1, 40), 200)
            if total + epsilon <= 3:
                model.append(book.reserve(**guarantee(float(epsilon))))
                total += epsilon
            else:
                with pytest.raises(BudgetExceededError):
                    book.reserve(**guarantee(float(epsilon)))
        elif model and (entry := rng.choice(model)) not in confirmed:
            confirmed[entry] = f"{rng.getrandbits(256):064x}"
            book.confirm(entry, confirmed[entry])
        if rng.random() < 0.1:
            book = open_ledger(book.path, expected_head=book.head)
    assert [release.entry for release in book.entries()] == model
    assert {r.entry: r.digest for r in book.entries() if r.digest} == confirmed
    assert Fraction(repr(book.spent().basic_epsilon)) == total
    assert {r.entry for r in book.unconfirmed()} == set(model) - set(confirmed)


def test_every_error_of_a_book_is_caught_as_the_builtin_that_fits(tmp_path):
    with pytest.raises(OSError) as missing:
        open_ledger(tmp_path / "none.db")
    assert isinstance(missing.value, DPBayesError)
