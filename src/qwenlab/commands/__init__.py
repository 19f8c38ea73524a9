"""The commands of `qwenlab`, apart from the first three, which stand in cli.py itself."""
