r"""The process in which math-verify works: one question a line on stdin, one reply a line on stdout.

`symbolic.Worker` starts it by its path, so it imports nothing of qwenlab. Its argument is the limit in seconds.

    ""                                                  ready, or why not: math-verify doesn't load
    [["2\\sqrt3", "1"], ["1", "\\sqrt{12}"], false]     asked: answers, golds, and if their order counts
    true                                                the reply

Where the system can fork, a child does the work, and a timer of the system ends it at the limit, whatever it hangs
in; the next child is there in no time, since math-verify is loaded already. Both end when stdin closes, as it does
when the process that asks is gone, however that ended.
"""

import json
import logging
import os
import signal
import sys

# Bytes of address space: what asks for more gets a MemoryError, not the machine's memory.
SPACE = 2**30
# kB at most that a child may grow above what it started with, and the exit status that says it has.
GROWTH, GROWN = 100_000, 3


def equal(a: str, b: str) -> bool:
    """If math-verify finds both to be the same. It may ask in one direction only, so the pair is sorted first."""
    from math_verify import LatexExtractionConfig, parse, verify

    left, right = (
        parse(f"${text}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)
        for text in sorted((a, b))
    )
    return bool(verify(left, right, timeout_seconds=None, allow_set_relation_comp=True))


def matches(answers: list[str], golds: list[str], ordered: bool) -> bool:
    """One to one: each in its place or, if not `ordered`, each with a gold of its own."""
    for answer in answers:
        hit = next((i for i, gold in enumerate(golds[:1] if ordered else golds) if equal(answer, gold)), None)
        if hit is None:
            return False
        golds = golds[:hit] + golds[hit + 1 :]
    return not golds


def peak() -> int:
    """The most memory that this process ever held, in kB; 0 where the system doesn't say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)


def serve(reply, limit: float) -> bool:
    """Answers until stdin closes, or until this process has grown too large: then True."""
    rest = peak()
    for line in sys.stdin:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, limit)
        try:
            right = matches(*json.loads(line))
        except Exception:  # RecursionError and MemoryError too
            right = False
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        reply(right)
        if peak() - rest > GROWTH:
            return True
    return False


def main(limit: float) -> None:
    replies, sys.stdout = sys.stdout, sys.stderr  # what a library prints is no reply

    def reply(value) -> None:
        print(json.dumps(value), file=replies, flush=True)

    logging.disable(logging.CRITICAL)
    try:
        equal(r"\frac{1}{2}", "x")  # the first question takes a tenth of a second more
    except Exception as problem:
        return reply(f"{type(problem).__name__}: {problem}")
    reply("")
    if not hasattr(os, "fork"):
        serve(reply, limit)
        return
    import resource

    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends a child
    resource.setrlimit(resource.RLIMIT_AS, (SPACE, resource.getrlimit(resource.RLIMIT_AS)[1]))
    while True:
        child = os.fork()
        if not child:
            os._exit(GROWN if serve(reply, limit) else 0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == -signal.SIGALRM:
            reply(False)
        elif status != GROWN:
            return


if __name__ == "__main__":
    main(float(sys.argv[1]))
