"""Orders at random that follow from a seed alone, so that a run goes on anywhere in them."""

import random


def seeded(*key: object) -> random.Random:
    """Random numbers that follow from the key's words and numbers, on every machine the same."""
    return random.Random(" ".join(map(str, key)))


def seeded_order(count: int, *key: object) -> list[int]:
    """The numbers from 0 to `count` - 1 in an order that follows from the key: see `seeded`."""
    order = list(range(count))
    seeded(*key).shuffle(order)
    return order
