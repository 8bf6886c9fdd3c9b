"""The search for plans: ours and the baselines."""
