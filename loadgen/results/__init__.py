"""What came of the requests of a load test: records, goals, figures, and whether the figures can be trusted."""
