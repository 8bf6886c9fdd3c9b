"""Measures what models cost on this machine's devices: the profiles that the planner reads.

`profile.profile_models` measures a configuration's models, or finds them in a `cache.Cache`; `effort.FULL` and
`effort.QUICK` say how much is measured; `results` are what it gives. Nothing heavy is imported here.
"""
