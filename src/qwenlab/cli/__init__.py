"""The command line: one file for each group of commands. main.py puts them together.

Commands import what they need when they run, so that `qwenlab --help` answers at once.
"""
