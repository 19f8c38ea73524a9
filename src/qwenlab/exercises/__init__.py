"""The lessons' exercises: solution, cases and known mistakes of each, one file a group. `teach.check` finds them here."""
