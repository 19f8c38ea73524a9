"""A beginning that several prompts have in common is read once: by one of them, for all of them.

The row that has read it is copied. Keys and values could be cut out of a longer row too; the memory of a linear layer
can't, so the copy is made at the very end of the beginning.
"""

from itertools import takewhile

from qwenlab.batching.request import Request
from qwenlab.model.state import State


class Prefix:
    """The first `length` tokens of some prompts. `users` still want them, `reader` reads them, `state` is one row
    that has, kept as long as there are users."""

    def __init__(self, length: int, users: list[Request]):
        self.length, self.users = length, set(users)
        self.reader: Request | None = None
        self.state: State | None = None
        for request in users:
            request.prefixes.append(self)

    def leave(self, request: Request) -> None:
        """The request has it, or never will."""
        self.users.discard(request)
        if self.reader is request:
            self.reader = None
        if not self.users:
            self.state = None
        request.prefixes.remove(self)  # last: nobody must wait for a reader that has gone, wherever this breaks off


def share(requests: list[Request], n: int, everybody: bool) -> None:
    """Lets the `n` samples of each prompt share it, and all prompts, if `everybody`, what they have in common.

    A request's prefixes get shorter along its list. Each reads at least the last token of its prompt by itself, for
    the logits behind it.
    """
    groups = [requests[i : i + n] for i in range(0, len(requests), n)] + [requests] * everybody
    for group in groups:
        group = [request for request in group if request.cap]  # the others never read
        if len(group) > 1:
            columns = zip(*(request.prompt[:-1] for request in group), strict=False)
            length = sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, columns))
            if length:
                Prefix(length, group)


def source(request: Request) -> Prefix | None:
    """The longest beginning that can be copied now."""
    return next((prefix for prefix in request.prefixes if prefix.state is not None), None)


def may_start(request: Request) -> bool:
    """Whether the request can read on now: not while somebody else reads a beginning that it can then have.
    A beginning that nobody reads yet becomes its own to read."""
    for prefix in request.prefixes:
        if prefix.state is not None:
            return True
        prefix.reader = prefix.reader or request
        if prefix.reader is not request:
            return False
    return True


def keep(request: Request, state: State) -> None:
    """Keeps a copy of the request's row, which has just read `request.read` tokens, if others wait for them."""
    for prefix in [prefix for prefix in request.prefixes if prefix.length <= request.read]:
        if prefix.length == request.read and prefix.state is None and len(prefix.users) > 1:
            prefix.state = state.select([request.row])
        prefix.leave(request)


def release(request: Request) -> None:
    """The request is finished, or has to go: those who wait for it to read must find another reader."""
    for prefix in list(request.prefixes):
        prefix.leave(request)
