"""Commands that torchrun starts several times: which may be, and what is printed only once.

The environment tells how many there are, so that nothing is loaded for it where there is one.
"""

import os
import sys
import time
from contextlib import redirect_stderr

from qwenlab.console import say
from qwenlab.errors import QwenlabError

TOGETHER = ("grpo", "distill")
# torchrun ends the others as soon as one has ended, and reports the first: these wait for it.
GRACE = 15.0  # seconds


def started() -> int:
    """How many processes torchrun has started, this one among them; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def check_command(name: str) -> None:
    """Raises QwenlabError if torchrun has started several of a command that runs in one process."""
    if started() > 1 and name not in TOGETHER:
        raise QwenlabError(f"{name} runs in one process; torchrun is for {' and '.join(TOGETHER)}")


def silence_others() -> None:
    """Has only the first rank print, and show its progress."""
    if started() > 1 and not is_first():
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")


def is_first() -> bool:
    return started() == 1 or os.environ["RANK"] == "0"


def join(device: str | None) -> None:
    """Makes this process a rank if torchrun has started several: see `qwenlab.scale.ranks.join`."""
    if started() > 1:
        from qwenlab.scale import ranks

        ranks.join(device)


def leave() -> None:
    if started() > 1:
        from qwenlab.scale import ranks

        ranks.leave()


def complain(problem: object, status: int) -> int:
    """Prints an error as one line, unless another rank has just printed the same, and returns the
    exit status."""
    if started() == 1:
        return say(problem, status)

    from qwenlab.scale import ranks

    if ranks.first_to_say(str(problem)):
        with redirect_stderr(sys.__stderr__):
            say(problem)
            sys.stderr.flush()
    if isinstance(problem, ranks.RankLost):
        time.sleep(GRACE)
    return status
