"""Tables, figures and JSON of finished runs."""

from rlvr_jax.reports.comparison import (
    comparison_figure,
    comparison_table,
    evaluation_summary,
    evaluation_table,
    summarize,
    write_summary,
)

__all__ = [
    "comparison_figure",
    "comparison_table",
    "evaluation_summary",
    "evaluation_table",
    "summarize",
    "write_summary",
]
