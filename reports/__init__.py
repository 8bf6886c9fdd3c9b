"""Pages and pictures for people: one look for every report. Knows nothing of what it draws; imports nothing of ours."""

from reports.command import command_line
from reports.page import COLOURS, Figure, Page, escaped, percent, seconds, shortened

__all__ = ["COLOURS", "Figure", "Page", "command_line", "escaped", "percent", "seconds", "shortened"]
