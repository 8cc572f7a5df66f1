"""`dpbayes privacy`: what a mechanism costs, or how much noise a promise needs, as a table and a plot."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from dpbayes.cli._choices import AdjacencyChoice

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


Delta = Annotated[list[float] | None, typer.Option(help="A delta; may be given again. Default: a few powers of ten.")]
Epsilon = Annotated[float | None, typer.Option(help="Target: print the noise that reaches it instead.")]
Runs = Annotated[int, typer.Option(help="How often the mechanism is used on the same people.")]
Relation = Annotated[AdjacencyChoice, typer.Option(help="What the sensitivity is meant for: neighbouring datasets.")]
Plot = Annotated[Path | None, typer.Option(help="Write epsilon(delta) to this .png, .svg or .pdf file.")]
RealMove = Annotated[float, typer.Option(help="Largest change of the released number(s) between neighbours.")]
WholeMove = Annotated[int, typer.Option(help="Largest change of the released integer between neighbours.")]
Scale = Annotated[float | None, typer.Option(help="Scale of the noise.")]
Stddev = Annotated[float | None, typer.Option(help="Standard deviation of the noise.")]


def _noise(command: str, law: str, *, parameter: Any, sensitivity: Any, pure: bool = False) -> Any:
    """Register a noise law as a command: every law takes the same options but for its own parameter.

    Parameters
    ----------
    command, law
        Name of the command, and of the law in tables.
    parameter
        `Scale` or `Stddev`.
    sensitivity
        `RealMove` or `WholeMove`.
    pure
        Whether epsilon at delta 0 is exactly runs * sensitivity / parameter.

    Returns
    -------
    callable
        Decorates the function of (parameter, sensitivity, runs) that gives the composed loss; its docstring is the
        help text.
    """
    name = "scale" if parameter is Scale else "stddev"
    options = {
        name: (parameter, None),
        "sensitivity": (sensitivity, 1),
        "compositions": (Runs, 1),
        "epsilon": (Epsilon, None),
        "delta": (Delta, None),
        "adjacency": (Relation, AdjacencyChoice.REPLACE_ONE),
        "plot": (Plot, None),
    }

    def register(build: Callable[[float, Any, int], Any]) -> Callable[[float, Any, int], Any]:
        def run(**given: Any) -> None:
            from dpbayes.cli._privacy_tables import Query, answer

            value, move, runs, epsilon, delta, adjacency, plot = (given[option] for option in options)
            query = Query(law, name, value, move, runs, epsilon, delta, adjacency.value, plot, pure=pure)
            answer(query, lambda noise: build(noise, move, runs))

        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter(option, keyword, default=default, annotation=kind)
            for option, (kind, default) in options.items()
        ]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {option: kind for option, (kind, _) in options.items()}
        run.__doc__ = build.__doc__
        app.command(command)(run)
        return build

    return register


@_noise("gaussian", "Gaussian", parameter=Stddev, sensitivity=RealMove)
def gaussian(stddev: float, sensitivity: float, runs: int) -> Any:
    """Gaussian noise on numbers with an L2 sensitivity.

    Example: `dpbayes privacy gaussian --epsilon 1 --delta 1e-5` prints 3.73064, the least standard deviation.
    """
    from dpbayes.cli._privacy_tables import GaussianTotal

    return GaussianTotal(sensitivity * runs**0.5 / stddev)


@_noise("laplace", "Laplace", parameter=Scale, sensitivity=RealMove, pure=True)
def laplace(scale: float, sensitivity: float, runs: int) -> Any:
    """Laplace noise on one number; density exp(-|x| / scale) / (2 scale).

    Example: `dpbayes privacy laplace --scale 20 --compositions 100 --delta 1e-8`
    """
    from dpbayes.privacy.closed_forms import laplace_loss

    return laplace_loss(scale=scale, sensitivity=sensitivity).compose(runs)


@_noise("geometric", "Two-sided geometric", parameter=Scale, sensitivity=WholeMove, pure=True)
def geometric(scale: float, sensitivity: int, runs: int) -> Any:
    """Two-sided geometric (discrete Laplace) noise on one integer; pmf tanh(1 / (2 scale)) exp(-|x| / scale).

    Example: `dpbayes privacy geometric --scale 20 --sensitivity 2 --compositions 10`
    """
    from dpbayes.privacy.closed_forms import geometric_loss

    return geometric_loss(scale=scale, sensitivity=sensitivity).compose(runs)


@_noise("discrete-gaussian", "Discrete Gaussian", parameter=Stddev, sensitivity=WholeMove)
def discrete_gaussian(stddev: float, sensitivity: int, runs: int) -> Any:
    """Discrete Gaussian noise on one integer; pmf proportional to exp(-x^2 / (2 stddev^2)).

    Example: `dpbayes privacy discrete-gaussian --stddev 10 --compositions 1000 --delta 1e-6`
    """
    from dpbayes.privacy.closed_forms import discrete_gaussian_loss

    return discrete_gaussian_loss(stddev=stddev, sensitivity=sensitivity).compose(runs)


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

    def loss(probability: float) -> Any:
        return randomized_response_loss(truth_probability=probability, categories=categories).compose(compositions)

    name = f"Randomized response, {categories} categories"
    query = Query(name, "truth probability", truth_probability, None, compositions, epsilon, delta, "replace-one", plot)
    answer(query, loss, largest_below=_uniform_to_one(categories))


def _uniform_to_one(categories: int) -> Callable[[float], float]:
    """Map noise in (0, infinity) to a truth probability between uniform and 1, decreasing."""
    import math

    return lambda noise: 1 / (1 + (categories - 1) * math.exp(-1 / noise))
