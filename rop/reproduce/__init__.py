"""The paper's experiments, run again: `rop reproduce`."""
