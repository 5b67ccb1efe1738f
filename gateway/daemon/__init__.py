"""The daemon. `process.py` prepares the process, `parts.py` builds the parts, `run.py` runs and reloads them."""
