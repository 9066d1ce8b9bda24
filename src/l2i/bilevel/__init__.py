"""The paper's contribution, usable on its own: hypergradients and the outer step (section 4)."""

from l2i.bilevel.functional import Net, Params, gradient, inner_step, lookahead, trainable
from l2i.bilevel.hypergradient import (
    HYPERGRADIENTS,
    Hypergradient,
    exact,
    finite_difference,
    last_layer,
    last_layer_paper,
    unrolled,
)
from l2i.bilevel.outer import (
    LearnableLabels,
    OuterGradient,
    OuterStep,
    OutputLabels,
    combine_normalized,
    norm,
    normalized_sum,
)
from l2i.bilevel.problem import Imputed, Problem, Student

__all__ = ["Net", "Params", "gradient", "inner_step", "lookahead", "trainable"]
__all__ += ["HYPERGRADIENTS", "Hypergradient", "exact", "finite_difference"]
__all__ += ["last_layer", "last_layer_paper", "unrolled"]
__all__ += ["LearnableLabels", "OuterGradient", "OuterStep", "OutputLabels"]
__all__ += ["combine_normalized", "norm", "normalized_sum"]
__all__ += ["Imputed", "Problem", "Student"]
