"""Random orders that follow from a seed alone, so that a run can resume anywhere in them."""

import random


def seeded(*key: object) -> random.Random:
    """A generator seeded with the words and numbers of `key`: the same on every machine."""
    return random.Random(" ".join(map(str, key)))


def seeded_order(count: int, *key: object) -> list[int]:
    """The numbers from 0 to `count` - 1 in the order that `key` determines: see `seeded`."""
    order = list(range(count))
    seeded(*key).shuffle(order)
    return order
