"""When devices of serving groups can train, and when they must be back: decided by demand, on any clock."""

from training.lending.officer import LoanOfficer, Option, Terms, Verdict
from training.lending.victims import Held, Victim, order_victims

__all__ = ["Held", "LoanOfficer", "Option", "Terms", "Verdict", "Victim", "order_victims"]
