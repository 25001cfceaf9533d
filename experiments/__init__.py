"""Command lines: `python -m experiments.NAME --help`."""
