"""Analytic profiles: what a transformer costs on a device kind, from its config and data sheets."""
