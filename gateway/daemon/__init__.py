"""The daemon: `process.py` prepares the process, `parts.py` builds the parts, and `run.py` runs and reloads them."""
