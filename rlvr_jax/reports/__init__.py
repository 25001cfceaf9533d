"""Tables, figures and JSON of finished runs."""

from rlvr_jax.reports.comparison import comparison_figure, comparison_table, summarize, write_summary
from rlvr_jax.reports.evaluation import (
    against_summary,
    against_table,
    evaluation_summary,
    evaluation_table,
    require_ks,
)

__all__ = [
    "against_summary",
    "against_table",
    "comparison_figure",
    "comparison_table",
    "evaluation_summary",
    "evaluation_table",
    "require_ks",
    "summarize",
    "write_summary",
]
