"""Exact coin flips and permutations from the operating system's generator.

A flip probability is a double, hence a dyadic rational; a uniform number is compared with it byte by byte, and further
bytes are drawn only for the coins that are still undecided. No coin is off by even 2^-64.
"""

import os
from fractions import Fraction

import numpy as np

__all__ = ["secure_coins", "secure_permutation"]


def secure_coins(n: int, prob: float) -> np.ndarray:
    """Return `n` independent coins that are true with probability exactly `prob`.

    Parameters
    ----------
    n
        Number of coins.
    prob
        A double between 0 and 1, taken at its exact value.

    Returns
    -------
    numpy.ndarray
        Booleans, shape (n,).

    Examples
    --------
    >>> secure_coins(3, 0.0).tolist(), secure_coins(2, 1.0).tolist()
    ([False, False, False], [True, True])
    """
    coins = np.full(n, prob >= 1.0)
    rest = Fraction(prob) if prob < 1.0 else Fraction(0)
    undecided = None  # all of them, while None
    while rest > 0:
        digit = int(rest * 256)
        rest = rest * 256 - digit
        count = n if undecided is None else undecided.size
        if count == 0:
            break
        byte = np.frombuffer(os.urandom(count), dtype=np.uint8)
        if undecided is None:
            coins = byte < digit
            undecided = np.flatnonzero(byte == digit)
        else:
            coins[undecided] = byte < digit
            undecided = undecided[byte == digit]
    return coins


def secure_permutation(n: int) -> np.ndarray:
    """Return a permutation of 0, ..., n - 1, every one of them exactly as likely.

    The order of independent 64-bit keys; a draw with two equal keys (chance below n^2 / 2^65) is thrown away whole.

    Examples
    --------
    >>> sorted(secure_permutation(5).tolist())
    [0, 1, 2, 3, 4]
    """
    while True:
        keys = np.frombuffer(os.urandom(8 * n), dtype=np.uint64)
        order = np.argsort(keys)
        ranked = keys[order]
        if not (ranked[1:] == ranked[:-1]).any():
            return order
