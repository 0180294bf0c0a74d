"""The commands of `rop`; a file for each, or for a few that belong together."""
