"""The commands of `qwenlab`, by what they are for. cli.py puts them together."""
