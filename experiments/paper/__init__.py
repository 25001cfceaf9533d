"""One command for each claim of the paper: its runs, its table, its figure."""
