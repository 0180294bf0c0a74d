"""The commands of `rop`; a file for each, or for a few that belong together. Here is what they return."""

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
