"""When devices of serving groups can train, and when they must be back: decided by demand, on any clock."""

from training.lending.officer import LoanOfficer, Option, Terms, Verdict

__all__ = ["LoanOfficer", "Option", "Terms", "Verdict"]
