"""What placement raises.

InputError      a file, argument or value from outside is wrong: one line saying what, where, what is right
InfeasibleError the input is well formed, but no plan can exist for it
"""


class InputError(ValueError):
    """Wrong input from outside; commands print its one line and exit 2."""


class InfeasibleError(InputError):
    """No plan can satisfy the problem (say, a model that fits on no shape)."""
