"""`python -m qwenlab` and `torchrun -m qwenlab`: the same as the command `qwenlab`."""

from qwenlab.cli.main import main

if __name__ == "__main__":
    main()
