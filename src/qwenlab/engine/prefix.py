"""A prefix that several prompts share is prefilled once: by one request, for all of them.

The slot of that request is copied. Keys and values could be cut out of a longer row too, but the
recurrent state of a linear layer can't, so the copy is made at the very end of the prefix.
"""

from collections.abc import Collection

from qwenlab.engine.request import Request


class Prefix:
    """The first `length` tokens of some prompts. `users` are the requests that still need them."""

    def __init__(self, length: int, users: list[Request]) -> None:
        self.length = length
        self.users = set(users)
        for request in users:
            request.prefixes.append(self)

    def leave(self, request: Request) -> None:
        """The request has prefilled or copied it, or never will."""
        self.users.discard(request)
        request.prefixes.remove(self)


def share(requests: list[Request], n: int, everybody: bool = False, unit: int = 1) -> None:
    """Lets the n samples of each prompt share it, and, if `everybody`, all prompts their beginning.

    What is shared is a multiple of `unit` tokens. Sample k of prompt i is requests[i * n + k]. Each
    request still prefills at least the last token of its prompt itself, for the logits after it.
    """
    groups = [requests[i : i + n] for i in range(0, len(requests), n)]
    if everybody:
        groups.append(requests)  # last, so that a request's prefixes get shorter along its list
    for group in groups:
        users = [request for request in group if request.max_tokens]  # the others never prefill
        if len(users) < 2:
            continue
        length = common_length(users)
        length -= length % unit
        if length > 0:
            Prefix(length, users)


def common_length(requests: list[Request]) -> int:
    """How many tokens all prompts have in common at their start, the last of each left out."""
    first = requests[0].prompt
    shortest = min(len(request.prompt) for request in requests) - 1
    for place in range(shortest):
        if any(request.prompt[place] != first[place] for request in requests):
            return place
    return shortest


def longer_than(request: Request, num_tokens: int) -> list[Prefix]:
    """Those of the request's prefixes that its first `num_tokens` tokens don't contain."""
    return [prefix for prefix in request.prefixes if prefix.length > num_tokens]


def longest_saved(request: Request, saved: Collection[Prefix]) -> Prefix | None:
    """The longest of the request's prefixes of which there is a copy."""
    for prefix in request.prefixes:
        if prefix in saved:
            return prefix
    return None


def is_held_back(
    request: Request, saved: Collection[Prefix], being_prefilled: Collection[Prefix]
) -> bool:
    """Whether the request should wait until another has prefilled a prefix that it could copy."""
    for prefix in request.prefixes:
        if prefix in saved:
            return False
        if prefix in being_prefilled:
            return True
    return False


def prefill_end(request: Request, start: int, chunk: int) -> int:
    """Where a prefill from `start` ends: a chunk later, or earlier at the end of the text or of a
    shared prefix, where the slot can be copied."""
    end = min(start + chunk, request.num_tokens)
    for prefix in longer_than(request, start):
        end = min(end, prefix.length)
    return end


def worth_saving(request: Request, end: int, saved: Collection[Prefix]) -> list[Prefix]:
    """The prefixes that end where a prefill does and that others need a copy of, which doesn't
    exist yet."""
    prefixes = []
    for prefix in request.prefixes:
        if prefix.length == end and prefix not in saved and len(prefix.users) > 1:
            prefixes.append(prefix)
    return prefixes


def leave_held(request: Request) -> None:
    """Takes the request off the prefixes that its slot holds by now."""
    for prefix in list(request.prefixes):
        if prefix.length <= request.num_computed_tokens:
            prefix.leave(request)


def leave_all(request: Request) -> None:
    """The request is finished or preempted, and needs none of its prefixes."""
    for prefix in list(request.prefixes):
        prefix.leave(request)
