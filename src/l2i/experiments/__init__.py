"""Comparing, plotting, tuning and timing runs."""
