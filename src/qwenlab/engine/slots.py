"""Which running request holds which slot.

A slot is a place along the first dimension of the state's tensors (see qwenlab.model.state). Rows
that are computed together hold adjacent slots, so that the model reads their state as a view.
"""

from qwenlab.engine.request import Request
from qwenlab.engine.step_plan import Move

SHORT = 64  # tokens: rows up to this length are in one class


def assign_slots(running: list[Request]) -> tuple[list[Request], list[Move]]:
    """Slots 0..D-1 for the requests that decode, D..R-1 for those that prefill.

    Rows of similar length decode side by side, the long ones first, because attention then needs
    fewer padded keys. A request that has one of its group's slots keeps it. Returns the requests in
    order of their slots, and the moves.
    """
    groups: dict[int, list[Request]] = {}
    for request in running:
        groups.setdefault(length_class(request), []).append(request)
    ordered: list[Request] = []
    moves: list[Move] = []
    for size in sorted(groups, reverse=True):
        group = groups[size]
        moves += place(group, range(len(ordered), len(ordered) + len(group)))
        ordered += sorted(group, key=lambda request: request.slot)
    return ordered, moves


def length_class(request: Request) -> int:
    """0 for a request that prefills. Long rows of one class differ by less than a factor of 2."""
    if not request.decoding:
        return 0
    return max(request.num_tokens, SHORT).bit_length()


def place(group: list[Request], slots: range) -> list[Move]:
    """Gives each request of a group one of as many slots. Returns the moves."""
    free = set(slots) - {request.slot for request in group}
    moves = []
    for request in group:
        if request.slot in slots:
            continue
        slot = min(free)
        free.remove(slot)
        if request.slot is not None:
            moves.append(Move(request.slot, slot))
        request.slot = slot
    return moves


def pin_slots(running: list[Request]) -> list[Request]:
    """Gives each request the slot that its index names. Those that decode come first."""
    for request in running:
        request.slot = request.index
    return sorted(running, key=lambda request: (not request.decoding, request.slot))
