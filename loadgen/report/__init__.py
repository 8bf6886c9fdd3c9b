"""Load tests for people: text for the terminal, one HTML page with plots, a line of progress."""
