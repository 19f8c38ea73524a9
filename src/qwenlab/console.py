"""How a command talks to its user: lines on stderr, so that stdout carries only results."""

import sys


def say(what: object, status: int = 0) -> int:
    """Prints `what` as one line on stderr and returns `status`, an exit status to pass on."""
    print("qwenlab:", " ".join(str(what).split()), file=sys.stderr)
    return status
