"""How a command talks to whoever runs it: lines on stderr, so that stdout holds results only."""

import sys


def say(what: object, status: int = 0) -> int:
    """Prints one line on stderr and returns `status`, an exit status to pass on."""
    print("qwenlab:", " ".join(str(what).split()), file=sys.stderr)
    return status
