"""Training: the step of Algorithm 1, and the run around it."""
