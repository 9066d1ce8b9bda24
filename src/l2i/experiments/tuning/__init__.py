"""Sweeps on Optuna: trials of a recipe with other settings, shared by processes and machines, chosen on validation."""



