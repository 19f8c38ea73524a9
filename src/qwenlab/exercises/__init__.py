"""Solution, cases and known mistakes of every exercise, one file a group. `teach.check` finds them here."""
