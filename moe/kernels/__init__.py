"""The steps of an expert layer on GPUs, in Triton; each has its twin in `moe.steps`.

sorting    choices by slot
products   the rows of each slot times its matrix, with activation and gate
combining  answers by their weights
experts    the three together, as a layer calls them
report     what they cost on a kind of GPU, compiled ahead of time
"""
