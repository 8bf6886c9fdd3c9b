"""Small real models, made on this machine from text that is on every machine, for demos, tests and benchmarks.

`make.make_models` makes them, `random.make_random` makes large ones that know nothing, `language.perplexity` with
`material.held_out_tokens` judges them. Nothing heavy is imported here.
"""
