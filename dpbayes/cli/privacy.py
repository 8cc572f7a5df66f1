"""`dpbayes privacy`: what a mechanism costs, or how much noise a promise needs, as a table and a plot."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(
    name="privacy",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="""Exact privacy curves: epsilon at delta for given noise, or the noise for a given epsilon.

    What does Gaussian noise of standard deviation 10 on a sensitivity of 1 cost when it is used 1,000 times?

        dpbayes privacy gaussian --stddev 10 --compositions 1000 --delta 1e-6

    How much two-sided geometric noise do 10 tables need together, for epsilon 1, when replacing a person changes two
    counts of every table by 1 (so 2 in L1)?

        dpbayes privacy geometric --epsilon 1 --sensitivity 2 --compositions 10 --delta 0

    Every number is rounded to the safe side. Add --plot curve.png for epsilon as a function of delta.""",
)


class AdjacencyChoice(StrEnum):
    """Neighbouring relations."""

    REPLACE_ONE = "replace-one"
    ADD_REMOVE = "add-remove"


Delta = Annotated[list[float] | None, typer.Option(help="A delta; may be given again. Default: a few powers of ten.")]
Epsilon = Annotated[float | None, typer.Option(help="Target: print the noise that reaches it instead.")]
Runs = Annotated[int, typer.Option(help="How often the mechanism is used on the same people.")]
Relation = Annotated[AdjacencyChoice, typer.Option(help="What the sensitivity is meant for: neighbouring datasets.")]
Plot = Annotated[Path | None, typer.Option(help="Write epsilon(delta) to this .png, .svg or .pdf file.")]
RealMove = Annotated[float, typer.Option(help="Largest change of the released number(s) between neighbours.")]
WholeMove = Annotated[int, typer.Option(help="Largest change of the released integer between neighbours.")]
Scale = Annotated[float | None, typer.Option(help="Scale of the noise.")]
Stddev = Annotated[float | None, typer.Option(help="Standard deviation of the noise.")]


@app.command()
def gaussian(
    stddev: Stddev = None,
    sensitivity: RealMove = 1.0,
    compositions: Runs = 1,
    epsilon: Epsilon = None,
    delta: Delta = None,
    adjacency: Relation = AdjacencyChoice.REPLACE_ONE,
    plot: Plot = None,
) -> None:
    """Gaussian noise on numbers with an L2 sensitivity.

    Example: `dpbayes privacy gaussian --epsilon 1 --delta 1e-5` prints 3.73064, the least standard deviation.
    """
    from dpbayes.cli._privacy_tables import GaussianTotal, Query, answer

    query = Query("Gaussian", "stddev", stddev, sensitivity, compositions, epsilon, delta, adjacency.value, plot)
    answer(query, lambda value: GaussianTotal(sensitivity * compositions**0.5 / value))


@app.command()
def laplace(
    scale: Scale = None,
    sensitivity: RealMove = 1.0,
    compositions: Runs = 1,
    epsilon: Epsilon = None,
    delta: Delta = None,
    adjacency: Relation = AdjacencyChoice.REPLACE_ONE,
    plot: Plot = None,
) -> None:
    """Laplace noise on one number; density exp(-|x| / scale) / (2 scale).

    Example: `dpbayes privacy laplace --scale 20 --compositions 100 --delta 1e-8`
    """
    from dpbayes.cli._privacy_tables import Query, answer
    from dpbayes.privacy.closed_forms import laplace_loss

    query = Query("Laplace", "scale", scale, sensitivity, compositions, epsilon, delta, adjacency.value, plot)
    answer(query, lambda value: laplace_loss(scale=value, sensitivity=sensitivity).compose(compositions))


@app.command()
def geometric(
    scale: Scale = None,
    sensitivity: WholeMove = 1,
    compositions: Runs = 1,
    epsilon: Epsilon = None,
    delta: Delta = None,
    adjacency: Relation = AdjacencyChoice.REPLACE_ONE,
    plot: Plot = None,
) -> None:
    """Two-sided geometric (discrete Laplace) noise on one integer; pmf tanh(1 / (2 scale)) exp(-|x| / scale).

    Example: `dpbayes privacy geometric --scale 20 --sensitivity 2 --compositions 10`
    """
    from dpbayes.cli._privacy_tables import Query, answer
    from dpbayes.privacy.closed_forms import geometric_loss

    query = Query(
        "Two-sided geometric", "scale", scale, sensitivity, compositions, epsilon, delta, adjacency.value, plot
    )
    answer(query, lambda value: geometric_loss(scale=value, sensitivity=sensitivity).compose(compositions))


@app.command("discrete-gaussian")
def discrete_gaussian(
    stddev: Stddev = None,
    sensitivity: WholeMove = 1,
    compositions: Runs = 1,
    epsilon: Epsilon = None,
    delta: Delta = None,
    adjacency: Relation = AdjacencyChoice.REPLACE_ONE,
    plot: Plot = None,
) -> None:
    """Discrete Gaussian noise on one integer; pmf proportional to exp(-x^2 / (2 stddev^2)).

    Example: `dpbayes privacy discrete-gaussian --stddev 10 --compositions 1000 --delta 1e-6`
    """
    from dpbayes.cli._privacy_tables import Query, answer
    from dpbayes.privacy.closed_forms import discrete_gaussian_loss

    query = Query(
        "Discrete Gaussian", "stddev", stddev, sensitivity, compositions, epsilon, delta, adjacency.value, plot
    )
    answer(query, lambda value: discrete_gaussian_loss(stddev=value, sensitivity=sensitivity).compose(compositions))


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
    from dpbayes.cli._privacy_tables import Query, answer
    from dpbayes.privacy.closed_forms import randomized_response_loss

    def loss(probability: float):  # type: ignore[no-untyped-def]
        return randomized_response_loss(truth_probability=probability, categories=categories).compose(compositions)

    name = f"Randomized response, {categories} categories"
    query = Query(name, "truth probability", truth_probability, None, compositions, epsilon, delta, "replace-one", plot)
    answer(query, loss, largest_below=_uniform_to_one(categories))


def _uniform_to_one(categories: int) -> Callable[[float], float]:
    """Map noise in (0, infinity) to a truth probability between uniform and 1, decreasing."""
    import math

    return lambda noise: 1 / (1 + (categories - 1) * math.exp(-1 / noise))
