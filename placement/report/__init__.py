"""Pages and pictures for people: a plan and what came of it, a comparison of policies. One file each, no
network."""

from placement.report.comparison import write_comparison_png, write_comparison_report
from placement.report.plan import write_plan_report

__all__ = ["write_comparison_png", "write_comparison_report", "write_plan_report"]
