"""What `python -m experiments.benchmark` can measure, one file each."""
