"""The errors that are the user's to mend: one line, naming the file, row or token and what was expected."""


class QwenlabError(ValueError):
    """Base of qwenlab's own errors. Commands print its message as one line and exit with status 2."""
