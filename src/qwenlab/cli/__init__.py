"""The command line: one file for each group of commands, assembled in main.py.

Commands import what they need when they run, so that `qwenlab --help` is fast.
"""
