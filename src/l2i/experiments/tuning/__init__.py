"""Sweeps on Optuna: settings of a recipe, searched on validation by any number of processes."""
