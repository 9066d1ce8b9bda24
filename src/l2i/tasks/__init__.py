"""Tasks: classification and regression."""

from l2i.tasks.base import Task
from l2i.tasks.classification import Classification
from l2i.tasks.regression import Regression

__all__ = ["Classification", "Regression", "Task"]
