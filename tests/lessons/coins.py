"""McNemar's exact test by counting, beside which lessons 11 and 12 are held."""

from math import comb


def chance(won, lost):
    """How often coins split at least as unevenly, counted over all of their outcomes."""
    coins = won + lost
    uneven = 0
    for heads in range(coins + 1):
        if abs(coins - 2 * heads) >= abs(won - lost):
            uneven += comb(coins, heads)
    return uneven / 2**coins
