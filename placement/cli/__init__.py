"""The planner's commands."""
