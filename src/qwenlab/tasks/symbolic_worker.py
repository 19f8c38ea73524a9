r"""The process in which math-verify works: one question a line on stdin, one reply a line on stdout.

`symbolic.Worker` starts it by its path, so it imports nothing of qwenlab. Its argument is the limit in seconds.

    ""                                  ready, or why not: math-verify doesn't load
    ["2\\sqrt3", "\\sqrt{12}"]          asked: are these two the same?
    true                                the reply

A child does the work, and a timer of the system ends it at the limit, whatever it hangs in. The next child is there in
no time, since math-verify is loaded already. Both end when stdin closes, as it does when the process that asks is
gone, however that ended.
"""

import json
import logging
import os
import signal
import sys
from contextlib import suppress

# Bytes of address space: what asks for more gets a MemoryError, not the machine's memory.
SPACE = 2**30
# How far a child may grow above what it started with, as `getrusage` counts it (kB, on macOS bytes), before the next
# one takes over; and the exit status which says that.
GROWTH, GROWN = 100_000 * (1024 if sys.platform == "darwin" else 1), 3


def equal(a: str, b: str) -> bool:
    """If math-verify finds both to be the same. It may ask in one direction only, so the pair is sorted first."""
    from math_verify import LatexExtractionConfig, parse, verify

    left, right = (
        parse(f"${text}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)
        for text in sorted((a, b))
    )
    return bool(verify(left, right, timeout_seconds=None, allow_set_relation_comp=True))


def serve(reply, limit: float) -> int:
    """Answers until stdin closes: 0; or until this process has grown too large: GROWN."""
    import resource

    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    rest = peak()
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, limit)
        try:
            right = equal(*json.loads(line))
        except Exception:  # RecursionError and MemoryError too
            right = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        reply(right)
        if peak() - rest > GROWTH:
            return GROWN
    return 0


def main(limit: float) -> None:
    replies, sys.stdout = sys.stdout, sys.stderr  # what a library prints is no reply

    def reply(value) -> None:
        print(json.dumps(value), file=replies, flush=True)

    logging.disable(logging.CRITICAL)
    try:
        import resource

        equal("2x=4", r"x=\frac{4}{2}")  # makes parser and solver ready, once for all children
    except Exception as problem:  # Windows has no `resource`
        return reply(f"{type(problem).__name__}: {problem}")
    with suppress(OSError, ValueError):  # macOS
        resource.setrlimit(resource.RLIMIT_AS, (SPACE, SPACE))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends a child
    reply("")
    status = GROWN
    while status in (GROWN, -signal.SIGALRM):
        child = os.fork()
        if not child:
            os._exit(serve(reply, limit))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == -signal.SIGALRM:
            reply(False)


if __name__ == "__main__":
    main(float(sys.argv[1]))
