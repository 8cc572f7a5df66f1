"""`dpbayes privacy`: what a mechanism costs, or how much noise a promise needs, as a table and a plot."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dpbayes.cli.tables import show_table
from dpbayes.errors import InputError

if TYPE_CHECKING:
    from dpbayes.bloom.claims import EpsilonClaim
    from dpbayes.mvg.sensitivity import FeatureRanges
    from dpbayes.privacy.losses import PrivacyLoss

_DELTAS = (1e-3, 1e-5, 1e-7, 1e-9)
_MEANING = {
    "replace-one": "neighbours differ in one record; the number of records is public",
    "add-remove": "one neighbour holds one record more; the number of records is protected",
}
_SUFFIXES = (".png", ".svg", ".pdf")

app = typer.Typer(
    name="privacy",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="""Exact privacy curves: epsilon at delta for given noise, or the noise for a given epsilon.

    What does Gaussian noise of standard deviation 10 on a sensitivity of 1 cost when it is used 1,000 times?

        dpbayes privacy gaussian --stddev 10 --compositions 1000 --delta 1e-6

    How much two-sided geometric noise do 10 tables need together, for epsilon 1, when replacing a record changes two
    counts of every table by 1 (so 2 in L1)?

        dpbayes privacy geometric --epsilon 1 --sensitivity 2 --compositions 10 --delta 0

    Every number is rounded to the safe side. Add --plot curve.png for epsilon as a function of delta.""",
)


Delta = Annotated[list[float] | None, typer.Option(help="A delta; may be given again. Default: a few powers of ten.")]
Epsilon = Annotated[float | None, typer.Option(help="Target: print the noise that reaches it instead.")]
Runs = Annotated[int, typer.Option(help="How often the mechanism is used on the same people.")]
Relation = Annotated[
    Literal["replace-one", "add-remove"], typer.Option(help="What the sensitivity is meant for: neighbouring datasets.")
]
Plot = Annotated[Path | None, typer.Option(help="Write epsilon(delta) to this .png, .svg or .pdf file.")]
RealMove = Annotated[float, typer.Option(help="Largest change of the released number(s) between neighbours.")]
WholeMove = Annotated[int, typer.Option(help="Largest change of the released integer between neighbours.")]
Scale = Annotated[float | None, typer.Option("--scale", help="Scale of the noise.")]
Stddev = Annotated[float | None, typer.Option("--stddev", help="Standard deviation of the noise.")]


# Command: its noise law, and the options of its parameter and its sensitivity.
_COMMANDS: dict[str, tuple[str, Any, Any]] = {
    "gaussian": ("gaussian", Stddev, RealMove),
    "laplace": ("laplace", Scale, RealMove),
    "geometric": ("two-sided-geometric", Scale, WholeMove),
    "discrete-gaussian": ("discrete-gaussian", Stddev, WholeMove),
}
_HELP = {
    "gaussian": """Gaussian noise on numbers with an L2 sensitivity.

    Example: `dpbayes privacy gaussian --epsilon 1 --delta 1e-5` prints 3.73064, the least standard deviation.""",
    "laplace": """Laplace noise on one number; density exp(-|x| / scale) / (2 scale).

    Example: `dpbayes privacy laplace --scale 20 --compositions 100 --delta 1e-8`""",
    "geometric": """Two-sided geometric (discrete Laplace) noise on one integer; pmf
    tanh(1 / (2 scale)) exp(-|x| / scale).

    Example: `dpbayes privacy geometric --scale 20 --sensitivity 2 --compositions 10`""",
    "discrete-gaussian": """Discrete Gaussian noise on one integer; pmf proportional to exp(-x^2 / (2 stddev^2)).

    Example: `dpbayes privacy discrete-gaussian --stddev 10 --compositions 1000 --delta 1e-6`""",
}


def _register(command: str, name: str, parameter: Any, move: Any) -> None:
    """Register the command of a noise law, with the options that all laws share."""

    def run(
        value: parameter = None,
        sensitivity: move = 1,
        compositions: Runs = 1,
        epsilon: Epsilon = None,
        delta: Delta = None,
        adjacency: Relation = "replace-one",
        plot: Plot = None,
    ) -> None:
        from dpbayes.privacy.laws import law_named

        law = law_named(name)

        def loss(noise: float) -> Any:
            return law.of(noise).loss(sensitivity=sensitivity).compose(compositions)

        title, shared = law.words[0].upper() + law.words[1:], (compositions, epsilon, delta, adjacency, plot)
        answer(Query(loss, title, law.parameter, value, sensitivity, *shared, pure=law.is_pure))

    app.command(command, help=_HELP[command])(run)


for _command, _options in _COMMANDS.items():
    _register(_command, *_options)


@app.command("randomized-response")
def randomized_response(
    truth_probability: Annotated[float | None, typer.Option(help="Probability of reporting the true category.")] = None,
    categories: Annotated[int, typer.Option(help="Number of categories; a lie is uniform over the others.")] = 2,
    compositions: Runs = 1,
    epsilon: Epsilon = None,
    delta: Delta = None,
    plot: Plot = None,
) -> None:
    """Randomized response of one person to one question; neighbours differ in that answer (replace-one).

    Example: `dpbayes privacy randomized-response --truth-probability 0.75 --compositions 100 --delta 1e-6`
    """
    from dpbayes.privacy.losses import randomized_response_loss

    def loss(probability: float) -> Any:
        return randomized_response_loss(truth_probability=probability, categories=categories).compose(compositions)

    def probability_of(noise: float) -> float:
        """Map noise in (0, infinity) to a truth probability between uniform and 1, decreasing."""
        return 1 / (1 + (categories - 1) * math.exp(-1 / noise))

    name = f"Randomized response, {categories} categories"
    shared = (compositions, epsilon, delta, "replace-one", plot)
    answer(Query(loss, name, "truth probability", truth_probability, None, *shared, parameter_of=probability_of))


def check_figure(path: Path | None) -> None:
    """Refuse a ``--plot`` that cannot be written: before the work, not after it."""
    if path is None:
        return
    if path.suffix not in _SUFFIXES:
        raise InputError(f"--plot needs a file ending in {', '.join(_SUFFIXES)}, got {path}")
    if not path.parent.is_dir():
        raise InputError(f"--plot {path}: there is no folder {path.parent}; create it first")


@dataclass(frozen=True)
class Query:
    """What was asked on the command line about one mechanism, and its composed loss for a value of its parameter."""

    loss: Callable[[float], "PrivacyLoss"]
    law: str
    parameter: str
    value: float | None
    sensitivity: float | None
    compositions: int
    epsilon: float | None
    deltas: list[float] | None
    adjacency: str
    plot: Path | None
    pure: bool = False
    parameter_of: Callable[[float], float] = lambda noise: noise  # of an amount of noise, with which epsilon falls

    def __post_init__(self) -> None:
        option = "--" + self.parameter.replace(" ", "-")
        if (self.value is None) == (self.epsilon is None):
            given = "neither" if self.value is None else "both"
            raise InputError(f"give either {option} (to learn epsilon) or --epsilon (to learn the noise), got {given}")
        if self.compositions < 1:
            raise InputError(f"--compositions must be at least 1, got {self.compositions}")
        for delta in self.deltas or ():
            if not 0 <= delta < 1:
                raise InputError(f"--delta must be at least 0 and below 1, got {delta}; a usual choice is below 1 / n")
        check_figure(self.plot)
        for name, value in (("--epsilon", self.epsilon), (option, self.value), ("--sensitivity", self.sensitivity)):
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} must be positive and finite, got {value}")

    def pure_value(self, divisor: float) -> Fraction:
        """Return what pure privacy gives exactly: epsilon of a scale, or the scale of an epsilon."""
        from dpbayes.privacy.rounding import decimal_reading

        return self.compositions * decimal_reading(self.sensitivity or 0.0) / decimal_reading(divisor)

    @property
    def title(self) -> str:
        """One line that names the mechanism and how often it runs."""
        parts = [self.law]
        if self.value is not None:
            parts.append(f"{self.parameter} {self.value:g}")
        if self.sensitivity is not None:
            parts.append(f"sensitivity {self.sensitivity:g}")
        return ", ".join([*parts, f"{self.compositions:,} composition{'s' if self.compositions > 1 else ''}"])


def answer(query: Query) -> None:
    """Print the table of `query`, and write its plot."""
    deltas = query.deltas or list(_DELTAS)
    if query.value is not None:
        loss, rows = query.loss(query.value), []
        for delta in deltas:
            least, most = _bounds(query, loss, delta)
            rows.append((f"{delta:g}", _round(most, ROUND_CEILING), _round(least, ROUND_FLOOR)))
        show_table(("delta", "epsilon", "not below"), rows, title=query.title)
        curves = {query.title: loss}
    else:
        shown = {delta: _least(query, delta) for delta in deltas}
        title = f"{query.title}: least noise for epsilon {query.epsilon:g}"
        show_table(("delta", query.parameter), [(f"{delta:g}", value) for delta, value in shown.items()], title=title)
        curves = {f"{query.parameter} {value}, for delta {d:g}": query.loss(float(value)) for d, value in shown.items()}
    typer.echo(f"adjacency {query.adjacency}: {_MEANING[query.adjacency]}")
    if query.plot is not None:
        _draw(query, curves, query.plot)
        typer.echo(f"plot: {query.plot}")


def _bounds(query: Query, loss: "PrivacyLoss", delta: float) -> tuple[float | Fraction, float | Fraction]:
    """Return the bounds of epsilon at `delta`: one exact number where the law has a pure guarantee."""
    if query.pure and delta == 0:
        assert query.value is not None
        return (query.pure_value(query.value),) * 2
    found = loss.epsilon_bounds(delta)
    return found.lower, found.upper


def _least(query: Query, delta: float) -> str:
    """Return the parameter of the least noise for the query's epsilon at `delta`, rounded to the safe side."""
    assert query.epsilon is not None
    exact = query.pure_value(query.epsilon) if query.pure else math.inf
    value: float | Fraction = exact
    if not query.pure or delta > 0:
        found = query.parameter_of(_least_noise(query, query.epsilon, delta))
        value = min(found, exact)  # what is enough at delta 0 is enough at any
    increasing = query.parameter_of(2.0) > query.parameter_of(1.0)
    return _round(value, ROUND_CEILING if increasing else ROUND_FLOOR)


def _least_noise(query: Query, epsilon: float, delta: float) -> float:
    """Return the least noise with epsilon(delta) at most `epsilon`, to eight digits, from the safe side."""
    from dpbayes.privacy.rounding import least_where_kept

    # Epsilon is close to a power of the noise: few steps on their logarithms are enough.
    @cache
    def excess(log_noise: float) -> float:
        upper = query.loss(query.parameter_of(math.exp(log_noise))).epsilon_bounds(delta).upper
        return math.log(min(max(upper / epsilon, 1e-9), 1e9))

    high, at_high = 0.0, excess(0.0)
    while at_high > 0:
        high += max(1.0, min(at_high, 8.0))
        if high > 40:
            raise InputError(f"no amount of noise gives epsilon {epsilon:g} at delta {delta:g}; ask for delta above 0")
        at_high = excess(high)
    low = high - 1.0
    while excess(low) <= 0:
        low, high = low - 1.0, low
    return math.exp(least_where_kept(excess, low, high, step=1e-8))


def _round(value: float | Fraction, rounding: str) -> str:
    """Return six significant digits, rounded in the given direction; all of them when there are fewer."""
    if not math.isfinite(value):
        return "infinite"
    exact = Fraction(value)
    digits = Context(prec=6, rounding=rounding).divide(Decimal(exact.numerator), Decimal(exact.denominator))
    return f"{digits.normalize():f}"


def _draw(query: Query, curves: dict[str, "PrivacyLoss"], path: Path) -> None:
    """Draw epsilon as a function of delta, one line per curve."""
    import numpy as np
    from matplotlib.figure import Figure

    deltas = np.logspace(-12, -1, 89)
    figure = Figure(figsize=(7.0, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for label, loss in curves.items():
        epsilons = [loss.epsilon_bounds(float(delta)).upper for delta in deltas]
        axes.plot(deltas, np.where(np.isfinite(epsilons), epsilons, np.nan), label=label, linewidth=1.8)
    axes.set_ylim(bottom=0.0)
    axes.set(xscale="log", xlim=(deltas[0], deltas[-1]), xlabel="delta", ylabel="epsilon (rounded up)")
    axes.set_title(f"{query.title}\nadjacency: {query.adjacency}", fontsize=10, loc="left")
    axes.grid(True, color="0.9", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    if query.epsilon is not None:
        axes.axhline(query.epsilon, color="0.4", linewidth=0.8, linestyle="--")
        axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)


@app.command()
def bloom(
    n_filters: Annotated[list[int], typer.Option("-k", "--filters", help="Number of filters; may be given again.")],
    n_bits: Annotated[list[int], typer.Option("-m", "--bits", help="Bits of a filter; may be given again.")],
    flip_prob: Annotated[
        list[float] | None, typer.Option("-p", "--flip-prob", help="Flip probability; may be given again.")
    ] = None,
    delta: Annotated[float, typer.Option(help="Delta of the guarantee.")] = 1e-3,
    epsilon: Annotated[
        float | None, typer.Option(help="Find the flip probability for this epsilon, for every -k and -m.")
    ] = None,
    definition: Annotated[
        str, typer.Option(help="tight: (epsilon, delta)-DP; quantile: the paper's, with epsilon exceeded rarely.")
    ] = "tight",
    pairs: Annotated[
        str, typer.Option(help="paper: the pair the paper calls worst; all: proven for every pair (slower).")
    ] = "paper",
    plot: Annotated[
        Path | None,
        typer.Option(help="Write a plot here: epsilon against flipping, or with --epsilon flipping against filters."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Privacy cost of Bloom filters that are shuffled together and then flipped bit by bit.

    Neighbouring inputs differ in one position (one-position): a person more or less, or one person's other publishers;
    one person exchanged for another changes two. Every number says which pairs of inputs it covers: one filter is
    covered exhaustively; for several, "paper's pair, certified" protects that pair and no other, and --pairs all
    gives a bound that holds for all.

    Example: `dpbayes privacy bloom -k 6 -m 100000 -p 0.1 --delta 1e-3`
    """
    from dpbayes.bloom.calibration import bloom_epsilon, epsilon_figure, flip_prob_figure, flip_prob_for

    if (flip_prob is None) == (epsilon is None):
        raise InputError("give either --flip-prob, to be told epsilon, or --epsilon, to be told the flip probability")
    check_figure(plot)
    common: dict[str, Any] = {"delta": delta, "definition": definition, "pairs": pairs}
    rows = []
    for k in n_filters:
        for m in n_bits:
            if epsilon is None:
                needed = flip_prob or []
            else:
                needed = [flip_prob_for(epsilon=epsilon, n_filters=k, n_bits=m, **common)]
            rows += [(k, m, p, bloom_epsilon(flip_prob=p, n_filters=k, n_bits=m, **common)) for p in needed]
    if as_json:
        facts = [
            {"n_filters": k, "n_bits": m, "flip_prob": p, "adjacency": "one-position", **asdict(claim)}
            for k, m, p, claim in rows
        ]
        typer.echo(json.dumps(facts, indent=2))
    else:
        _print_claims(rows)
    if plot is not None:
        if epsilon is None:
            figure = epsilon_figure(n_filters=n_filters, n_bits=n_bits, **common)
        else:
            figure = flip_prob_figure({(k, m): p for k, m, p, _ in rows}, epsilon=epsilon, **common)
        figure.savefig(plot, dpi=150)
        typer.echo(f"plot: {plot}", err=as_json)


def _print_claims(rows: list[tuple[int, int, float, "EpsilonClaim"]]) -> None:
    first = rows[0][3]
    show_table(
        ("filters", "bits", "flip probability", "epsilon", "covers"),
        [(str(k), f"{m:,}", _probability(p), _interval(claim), claim.scope) for k, m, p, claim in rows],
        title=f"epsilon at delta {first.delta:g}, {first.definition}, one-position",
    )
    if any(claim.scope == "paper's pair, certified" for *_, claim in rows):
        typer.echo("The paper's pair is not always the worst; --pairs all gives an epsilon that holds for every pair.")
    typer.echo(
        "one-position: a person more or less, or one person's other publishers, costs epsilon once; one person "
        "exchanged for another changes two positions: at most (2 epsilon, (1 + e^epsilon) delta), and only where "
        "epsilon covers all pairs."
    )


def _interval(claim: "EpsilonClaim") -> str:
    from dpbayes.bloom.claims import outward

    if claim.scope == "all pairs, upper bound":
        return f"{outward(claim.upper, digits=4)} (worst pair found: {outward(claim.lower, digits=4, up=False)})"
    if claim.upper - claim.lower < 1e-8 * max(claim.upper, 1e-3):
        return outward(claim.upper, digits=8)
    return f"{outward(claim.lower, up=False)} to {outward(claim.upper)}"


def _probability(p: float) -> str:
    """Round up: more flipping costs less, so that what is printed keeps the epsilon beside it."""
    from dpbayes.bloom.claims import outward

    shown = outward(p, digits=8)
    return shown if float(shown) < 0.5 else repr(p)


@app.command()
def mvg(
    ranges: Annotated[
        list[str],
        typer.Option("--range", metavar="[Kx]LOWER:UPPER", help="Public bounds of a feature, or of K equal ones."),
    ],
    n: Annotated[int, typer.Option("-n", "--records", help="Number of records.")],
    epsilon: Annotated[float, typer.Option(help="Privacy parameter of the release.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Failure probability of the guarantee, well below 1 / n.")] = 1e-6,
    adjacency: Annotated[str, typer.Option(help="replace-one or add-remove.")] = "replace-one",
    theta: Annotated[str | None, typer.Option(metavar="T1,T2,...", help="Precision shares; equal by default.")] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="C1,C2,...",
            help="Weights of the features' noise variances in the root mean square that is shown and least; ones by "
            "default.",
        ),
    ] = None,
    zeta: Annotated[str, typer.Option(help="Reading of the paper's zeta: printed or laurent-massart.")] = "printed",
    stddev: Annotated[
        float | None, typer.Option(help="Also give the exact epsilon of i.i.d. noise of this standard deviation.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write the noise ellipses of the first two features here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Privacy cost of matrix Gaussian noise on records with bounded features.

    Shows the terms of the paper's Theorem 2, and the noise that the same guarantee takes by the paper's bound, as
    i.i.d. analytic Gaussian, directionally at the exact cost, and optimally.

    Example: `dpbayes privacy mvg --range 10x0:1 -n 70000 --epsilon 1 --delta 1e-5`
    """
    from dpbayes.mvg.allocation import check_reading, compare_noise, noise_ellipses

    check_reading(zeta)
    check_figure(plot)
    features = _ranges(ranges, adjacency)
    if plot is not None and features.size < 2:
        raise InputError("--plot draws two features; give at least two with --range")
    cost: dict[str, Any] = {"n": n, "epsilon": epsilon, "delta": delta, "zeta": zeta}
    costs = compare_noise(features, theta=_numbers(theta, "--theta"), weights=_numbers(weights, "--weights"), **cost)
    record = _bound(features, **cost)
    record["mechanisms"] = [
        {"mechanism": one.mechanism, "stddev": one.stddev, "ratio_to_optimal": one.ratio, "exact_epsilon": one.epsilon,
         "mu": one.noise.mu.value, "mu_known_by": one.noise.mu.method}
        for one in costs
    ]  # fmt: skip
    if stddev is not None:
        record["iid"] = _iid(features, n, stddev, delta)
    if plot is not None:
        noise_ellipses(costs, features).savefig(plot, dpi=150)
        record["plot"] = str(plot)
    if as_json:
        typer.echo(json.dumps(record, indent=1))
    else:
        _print_costs(record)


def _bound(features: "FeatureRanges", *, n: int, epsilon: float, delta: float, zeta: Any) -> dict[str, Any]:
    """Return what was asked, and the terms of Theorem 2."""
    from dpbayes.mvg.allocation import bound_terms, supremum_norm

    gamma, sensitivity = supremum_norm(features, n), features.frobenius
    asked: dict[str, Any] = {"m": features.size, "n": n, "epsilon": epsilon, "delta": delta}
    terms = bound_terms(**asked, gamma=gamma, sensitivity=sensitivity, zeta=zeta)
    asked |= {"adjacency": features.adjacency, "sensitivity": sensitivity, "gamma": gamma, "zeta_reading": zeta}
    return asked | {name: getattr(terms, name) for name in ("zeta", "alpha", "beta", "bound")}


def _iid(features: "FeatureRanges", n: int, stddev: float, delta: float) -> dict[str, float]:
    from dpbayes._arguments import positive_finite
    from dpbayes.mvg.matrix import Covariance, MatrixGaussian

    scale = positive_finite(stddev, "--stddev", remedy="it is the noise's standard deviation")
    noise = MatrixGaussian(Covariance.identity(features.size).scaled(scale**2), Covariance.identity(n), features)
    return {"stddev": scale, "mu": noise.mu.value, "epsilon": noise.epsilon(delta)}


def _ranges(texts: list[str], adjacency: str) -> "FeatureRanges":
    from dpbayes.mvg.sensitivity import FeatureRanges
    from dpbayes.privacy.adjacency import check_adjacency

    lower, upper = [], []
    for text in texts:
        try:
            times, separator, rest = text.partition("x")
            count = int(times) if separator else 1
            low, high = (float(part) for part in (rest if separator else text).split(":"))
        except ValueError:
            raise InputError(f"--range takes LOWER:UPPER or KxLOWER:UPPER such as 10x0:1, got {text!r}") from None
        if not 1 <= count <= 10_000:
            raise InputError(f"--range repeats a feature 1 to 10,000 times, got {text!r}")
        lower += [low] * count
        upper += [high] * count
    return FeatureRanges(lower, upper, check_adjacency(adjacency))  # type: ignore[arg-type]


def _numbers(text: str | None, option: str) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} takes numbers with commas between them, got {text!r}") from None


def _print_costs(record: dict[str, Any]) -> None:
    typer.echo(
        f"{record['m']} features x {record['n']:,} records, epsilon {record['epsilon']:g}, delta {record['delta']:g}, "
        f"{record['adjacency']}\n"
        f"Theorem 2 ({record['zeta_reading']} zeta): sensitivity {record['sensitivity']:.6g}, "
        f"gamma {record['gamma']:.6g}, zeta {record['zeta']:.6g}, alpha {record['alpha']:.6g}, "
        f"beta {record['beta']:.6g}\nprecision bound {record['bound']:.12g}\n"
    )
    show_table(
        ("mechanism", "noise stddev", "x optimal", "exact epsilon", "mu"),
        [
            (row["mechanism"], *(f"{row[key]:.5g}" for key in ("stddev", "ratio_to_optimal", "exact_epsilon")),
             f"{row['mu']:.5g} ({row['mu_known_by']})")
            for row in record["mechanisms"]
        ],
    )  # fmt: skip
    if "iid" in record:
        typer.echo(f"\ni.i.d. noise of stddev {record['iid']['stddev']:g}: epsilon {record['iid']['epsilon']:.6g}")
    if "plot" in record:
        typer.echo(f"\nplot: {record['plot']}")
