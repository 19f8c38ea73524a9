"""Conversations, in Python and in a terminal."""
