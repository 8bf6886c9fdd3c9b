"""The page at /: what is so now, and what happened in the last half hour, kept here and told to whoever looks."""

from serving.dashboard.routes import Dashboard
from serving.dashboard.source import Holder, Mark, Source
from serving.dashboard.totals import Totals

__all__ = ["Dashboard", "Holder", "Mark", "Source", "Totals"]
