"""From run directories to an answer: tables, one HTML page, and a live view.

Which method should these clients use, and does each of them gain? Reads what runs have
written and nothing else; no model is loaded and PyTorch is not needed.
"""

from fedloom.reports.collect import Collection, collect
from fedloom.reports.files import FORMATS, report, write_report
from fedloom.reports.runs import Run

__all__ = ["FORMATS", "Collection", "Run", "collect", "report", "write_report"]
