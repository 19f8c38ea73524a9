"""The old place of `qwenlab peers`."""

import sys

from qwenlab.console import say

if __name__ == "__main__":
    sys.exit(say("python -m qwenlab.bench is gone; call `qwenlab peers` with the same options", 2))
