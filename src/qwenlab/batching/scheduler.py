"""Who runs, and in which row: requests wait in line, take a slot, give it back. The host's bookkeeping, no tensors."""

from collections import deque
from typing import NamedTuple

from qwenlab.batching.prefix import release
from qwenlab.batching.request import Request


class Policy(NamedTuple):
    """`leave`: a finished request gives up its slot at once. `join`: a waiting one takes it at once, and reads its
    prompt in chunks beside those that decode. `most`: slots at once, whatever was asked."""

    leave: bool
    join: bool = False
    most: int | None = None


POLICIES = {
    "sequential": Policy(leave=True, most=1),  # one by one: what the others are compared with
    "static": Policy(leave=False),  # a batch runs until its longest answer ends
    "early-stop": Policy(leave=True),  # finished rows leave, the batch shrinks
    "continuous": Policy(leave=True, join=True),  # and whoever waits takes their seats
}


class Scheduler:
    """The requests on their way: waiting in order of arrival, then running in a row of the state, then finished.

    `running` lists those with a row, in order of their rows: first the `decoding` many that say a token a step, then
    those that still read. They sit in rows 0..R-1, so that a decode step reads the state through a view. With
    `pinned` each has the row that its index names instead, which it keeps and leaves as it is.
    """

    def __init__(self, slots: int, policy: Policy, token_budget: int | None, pinned: bool = False):
        self.slots, self.policy, self.token_budget, self.pinned = slots, policy, token_budget, pinned
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.decoding = 0
        self.dirty: set[int] = set()  # rows that hold what nobody needs any more
        self.stale = False  # since rows were given out somebody finished, or read a whole prompt
        self.preempted = 0

    def schedule(self) -> dict[int, int]:
        """Gives out the rows for the next step. Returns which rows' contents must move, {from: to}."""
        members = self.running
        if self.stale:
            members = self.staying()
        if self.token_budget is not None:
            members = self.within_budget(members)
        staying = len(members)
        if self.waiting and staying < self.slots and (self.policy.join or not members):
            members = self.joined(members)
        if members is self.running and not self.stale:
            return {}
        moves = self.seat(members)
        for _ in members[staying:]:  # only now: whoever has neither a row nor a place in the line would be lost
            self.waiting.popleft()
        self.stale = False
        return moves

    def staying(self) -> list[Request]:
        done = [request for request in self.running if request.finish_reason is not None]
        if self.policy.leave or len(done) == len(self.running):
            for request in done:
                self.vacate(request, dirty=not self.pinned)
        return [request for request in self.running if request.row is not None]

    def within_budget(self, members: list[Request]) -> list[Request]:
        """Drops the youngest until the others can each have one more token. One alone always can: see its cap."""
        while len(members) > 1 and held(members) > self.token_budget:
            youngest = max(members, key=lambda request: request.number)
            members = [request for request in members if request is not youngest]
            self.drop(youngest)
            self.preempted += 1
        return members

    def joined(self, members: list[Request]) -> list[Request]:
        """With those who now get a slot: strictly in order of arrival, so that nobody is overtaken for being long."""
        for request in self.waiting:
            more = [*members, request]
            if len(more) > self.slots or (self.token_budget is not None and held(more) > self.token_budget):
                break
            members = more
        return members

    def seat(self, members: list[Request]) -> dict[int, int]:
        """Rows 0..D-1 for those who decode, D..R-1 for those who read. Whoever has such a row keeps it.

        Among those who decode, rows of like length stand together, the long ones first: see `model.call.parts`.
        """
        alike: dict[int, list[Request]] = {}
        for request in members:
            length = 64 if self.pinned else max(request.size, 64)
            alike.setdefault(length.bit_length() * request.decoding, []).append(request)
        groups = [alike[length] for length in sorted(alike, reverse=True)]
        moves, first = {}, 0
        for group in groups:
            rows = range(first, first + len(group))
            free = iter(sorted(set(rows) - {request.row for request in group}))
            for request in group:
                if self.pinned:
                    request.row = request.index
                elif request.row not in rows:
                    row = next(free)
                    if request.row is not None:
                        moves[request.row] = row
                    request.row = row
            group.sort(key=lambda request: request.row)
            first = rows.stop
        self.dirty = (self.dirty | moves.keys()) - set(moves.values())
        self.running = [request for group in groups for request in group]
        self.decoding = sum(request.decoding for request in members)
        return moves

    def drop(self, request: Request) -> None:
        """Back to the head of the line. Its row is lost: prompt and answer so far are read again when it returns."""
        self.vacate(request, dirty=True)
        release(request)
        self.waiting.appendleft(request)

    def start_over(self) -> None:
        """Everybody back in line: after a step that broke off anywhere, nobody knows what the rows hold."""
        everybody = sorted({*self.running, *self.waiting}, key=lambda request: request.number)
        for request in everybody:
            if request.row is not None:
                release(request)
                self.vacate(request, dirty=True)  # last, so that it is done again if this breaks off too
        if not self.pinned:
            self.dirty = set(range(self.slots))
        self.waiting = deque(request for request in everybody if request.finish_reason is None)
        self.running, self.decoding = [], 0

    def vacate(self, request: Request, dirty: bool) -> None:
        if dirty and request.row is not None:
            self.dirty.add(request.row)
        request.row, request.read, request.decoding = None, 0, False


def held(requests: list[Request]) -> int:
    """Tokens, prompt and answer, that the requests hold once each of them has said one more."""
    return sum(request.size for request in requests) + len(requests)
