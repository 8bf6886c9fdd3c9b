"""What loadgen raises on bad input."""


class TrafficError(ValueError):
    """Traffic that cannot be made or read. One line: what is wrong, where, what would be right."""


class NoRequestsError(TrafficError):
    """So little traffic was asked for that none was drawn."""
