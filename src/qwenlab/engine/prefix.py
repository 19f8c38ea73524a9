"""A beginning that several prompts share is read once: by one request, for all of them.

The slot that has read it is copied. Keys and values could be cut out of a longer row too; the
recurrent state of a linear layer can't, so the copy is kept at the very end of the prefix.
"""

from itertools import count, takewhile

from qwenlab.engine.request import Request

_keys = count()


class Prefix:
    """The first `length` tokens of some prompts.

    `users` still need them, `reader` is the one that reads them, and `saved` says that the runner
    keeps a copy under `key`.
    """

    def __init__(self, length: int, users: list[Request]) -> None:
        self.key = next(_keys)
        self.length = length
        self.users = set(users)
        self.reader: Request | None = None
        self.saved = False
        for request in users:
            request.prefixes.append(self)

    def leave(self, request: Request) -> None:
        """The request has it, or never will."""
        self.users.discard(request)
        if self.reader is request:
            self.reader = None
        request.prefixes.remove(self)


def share(requests: list[Request], n: int, everybody: bool = False) -> None:
    """Lets the n samples of each prompt share it, and, if `everybody`, all prompts their beginning.

    Sample k of prompt i is requests[i * n + k]. Each request still reads at least the last token of
    its prompt itself, for the logits after it.
    """
    groups = [requests[i : i + n] for i in range(0, len(requests), n)]
    if everybody:
        groups.append(requests)  # last, so that a request's prefixes get shorter along its list
    for group in groups:
        readers = [request for request in group if request.max_tokens]  # the others never read
        if len(readers) > 1 and (length := common_length(readers)):
            Prefix(length, readers)


def common_length(requests: list[Request]) -> int:
    """How many tokens all prompts begin with alike, the last token of each left out."""
    prompts = [request.prompt[:-1] for request in requests]
    columns = zip(*prompts, strict=False)
    return sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, columns))


def longest_saved(request: Request) -> Prefix | None:
    """The longest prefix of the request of which there is a copy."""
    return next((prefix for prefix in request.prefixes if prefix.saved), None)


def claim_reading(request: Request) -> bool:
    """Whether the request may start to prefill: not while another reads a prefix for it.

    Claims each prefix that nobody reads yet: from then on it is this request's to read.
    """
    for prefix in request.prefixes:
        if prefix.saved:
            return True
        prefix.reader = prefix.reader or request
        if prefix.reader is not request:
            return False
    return True


def leave_all(request: Request) -> None:
    """The request is finished or preempted: those who wait for it need another reader."""
    for prefix in list(request.prefixes):
        prefix.leave(request)
