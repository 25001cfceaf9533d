"""Tables, figures and JSON of finished runs."""

from rlvr_jax.reports.comparison import comparison_figure, comparison_table, summarize, write_summary
from rlvr_jax.reports.evaluation import (
    against_summary,
    against_table,
    evaluation_summary,
    evaluation_table,
    require_ks,
)
from rlvr_jax.reports.page import page, report_numbers, write_report
from rlvr_jax.reports.runs import Run, find_runs, group_runs, read_run
from rlvr_jax.reports.samples import sample_completions

__all__ = [
    "Run",
    "against_summary",
    "against_table",
    "comparison_figure",
    "comparison_table",
    "evaluation_summary",
    "evaluation_table",
    "find_runs",
    "group_runs",
    "page",
    "read_run",
    "report_numbers",
    "require_ks",
    "sample_completions",
    "summarize",
    "write_report",
    "write_summary",
]
