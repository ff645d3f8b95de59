"""Several methods on the same clients, cohorts and first models, over several seeds."""

from fedloom.comparison.python import compare
from fedloom.comparison.result import ComparisonResult
from fedloom.comparison.settings import (
    MAIN,
    MAIN_JOB,
    Comparison,
    load_comparison,
    local_work,
    parse_comparison,
    run_directory,
    with_equal_work,
    with_tuned,
)
from fedloom.comparison.train import failures, run_comparison

__all__ = [
    "MAIN",
    "MAIN_JOB",
    "Comparison",
    "ComparisonResult",
    "compare",
    "failures",
    "load_comparison",
    "local_work",
    "parse_comparison",
    "run_comparison",
    "run_directory",
    "with_equal_work",
    "with_tuned",
]
