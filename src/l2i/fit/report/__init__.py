"""The HTML report of a fit: one file that asks nothing of anybody else's machine."""

from l2i.fit.report.page import write_report

__all__ = ["write_report"]
