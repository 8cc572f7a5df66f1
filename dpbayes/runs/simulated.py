"""Noise from a seeded generator: which specs may ask for it, and how the terminal says that it was drawn."""

from __future__ import annotations

__all__ = ["refuse_seed", "sampler_note"]


def refuse_seed(seed: int | None, *, file: str | None, public: bool, ledger: str | None) -> None:
    """Refuse a noise seed beside records that may be confidential, and beside a budget book.

    The spec in the run folder holds the seed, so whoever reads the folder can draw the noise again and take it off
    the release: what is left are the exact counts. Embedded and generated records are public.

    Parameters
    ----------
    seed
        ``privacy.simulation_seed`` of the spec.
    file
        Key of the file of records in the spec's section [data], or None if no file holds records.
    public
        Whether the spec declares the file public.
    ledger
        ``privacy.ledger`` of the spec: a book records real releases.

    Raises
    ------
    ValueError
        If there is a seed, and a file that is not declared public or a book.

    Examples
    --------
    >>> refuse_seed(7, file=None, public=False, ledger=None)
    >>> refuse_seed(7, file="microdata", public=True, ledger=None)
    >>> refuse_seed(7, file="microdata", public=False, ledger=None)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: privacy.simulation_seed = 7 with data.microdata would give the exact counts back: ...
    """
    if seed is not None and file is not None and not public:
        raise ValueError(
            f"privacy.simulation_seed = {seed} with data.{file} would give the exact counts back: whoever holds the "
            "seed can take the noise off again; leave the seed out, so that OpenDP draws the noise, or, if the "
            "records are public, set data.truth_public = true"
        )
    if seed is not None and ledger is not None:
        raise ValueError(
            f"privacy.ledger = {ledger!r} records real releases, and a seed simulates one; leave out "
            "privacy.simulation_seed, or the ledger"
        )


def sampler_note(sampler: str) -> str:
    """Return what the terminal adds to the line of a release: nothing if a cryptographic sampler drew it.

    Parameters
    ----------
    sampler
        ``sampler`` of the release.

    Examples
    --------
    >>> sampler_note("opendp"), sampler_note("simulation")
    ('', '; SIMULATION: a seeded generator drew the noise, no privacy guarantee')
    """
    return "; SIMULATION: a seeded generator drew the noise, no privacy guarantee" if sampler == "simulation" else ""
