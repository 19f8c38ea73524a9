"""`python -m qwenlab`, which `torchrun -m qwenlab` finds too: the same as the command `qwenlab`."""

from qwenlab.cli.main import main

if __name__ == "__main__":
    main()
