"""Hypergradients through attention: a tiny BERT in float64, its dropout off and on."""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from l2i.bilevel import Problem, exact, finite_difference, last_layer, unrolled
from l2i.bilevel.forward_mode import has_dropout, use_math_attention, use_same_attention
from l2i.data.batch import Batch, Labeled, Unlabeled
from l2i.models.base import ModelConfig
from l2i.models.text_encoder import TextEncoder, build_text_encoder
from l2i.tasks import Classification
from problems import FLOAT64, ToyProblem, method_named, relative

LENGTH, WORDS, ETA = 12, (1000, 1200), 0.1
METHODS = ["uda", "fixmatch", "mean-teacher", "pi-model"]


def bert(dropout: float = 0.0) -> TextEncoder:
    network = ModelConfig(
        name="encoder",
        weights="random",
        width=32,
        depth=2,
        dropout=dropout,
        encoder_dropout=dropout,
    )
    model = build_text_encoder((LENGTH,), 3, network).to(FLOAT64).train()
    with torch.no_grad():
        model.head.weight.mul_(20)  # else every output is much the same
    return model


def texts(count: int) -> Tensor:
    """Token ids with padding at the end of some."""
    ids = torch.randint(*WORDS, (count, LENGTH))
    return ids.where(
        torch.arange(LENGTH) < torch.randint(4, LENGTH + 1, (count, 1)), torch.tensor(0)
    )


def problem(method: str = "uda", dropout: float = 0.0) -> ToyProblem:
    torch.manual_seed(0)
    views = {name: texts(5) for name in ("weak", "weak2", "strong")}
    labeled, held = (Labeled(texts(n), torch.arange(n) % 3) for n in (4, 6))
    batch = Batch(labeled, Unlabeled(views, None), None, held, torch.tensor(0.3, dtype=FLOAT64))
    return ToyProblem(bert(dropout), Classification(num_outputs=3), method_named(method), batch)


def d_z(
    p: ToyProblem,
    function: object,
    *,
    eta: float | None = ETA,
    inner_steps: int = 1,
    c_t: bool = False,
) -> Tensor:
    imputed = p.impute()
    inner = p.inner(with_c_t=c_t, imputed=imputed)
    torch.manual_seed(1)
    return function(
        Problem(
            p.model,
            p.params,
            inner["student"],
            imputed,
            p.c_h,
            eta=eta,
            inner_steps=inner_steps,
            c_t=inner["c_t"],
        )
    )


@pytest.mark.parametrize("c_t", [True, False], ids=["with C^T", "without C^T"])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("method", METHODS)
def test_exact_equals_unrolled(method: str, dropout: float, c_t: bool) -> None:
    p = problem(method, dropout)
    torch.manual_seed(2)
    wanted = d_z(p, unrolled, c_t=c_t)
    torch.manual_seed(2)
    assert relative(d_z(p, exact, c_t=c_t), wanted) < 1e-8


def test_exact_equals_unrolled_over_three_inner_steps() -> None:
    p = problem()
    assert relative(d_z(p, exact, inner_steps=3), d_z(p, unrolled, inner_steps=3)) < 1e-8


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize(("dtype", "tolerance"), [(FLOAT64, 1e-6), (torch.float32, 0.02)])
def test_finite_differences_equal_exact_to_one_in_a_million_and_in_float32_to_two_in_a_hundred(
    dtype: torch.dtype, tolerance: float, dropout: float
) -> None:
    p = problem(dropout=dropout)
    torch.manual_seed(2)
    wanted = d_z(p, exact)
    p.model.to(dtype)
    torch.manual_seed(2)
    assert relative(d_z(p, finite_difference).to(FLOAT64), wanted) < tolerance


@pytest.mark.parametrize("method", METHODS)
def test_last_layer_equals_the_derivative_along_v_without_all_but_the_head(method: str) -> None:
    """Both at θ* where only the head has moved; by torch.func, with only the costs from l2i."""
    p = problem(method)
    imputed, student, theta = p.impute().detach(), p.student(), dict(p.model.named_parameters())
    head = [name for name in theta if name.startswith("head.")]

    def outputs(values: tuple[Tensor, ...]) -> Tensor:
        return functional_call(
            p.model, {**theta, **dict(zip(theta, values, strict=True))}, (student.inputs,)
        )

    cost = student.cost(outputs(tuple(theta.values())), imputed)
    moved = torch.autograd.grad(cost, [theta[name] for name in head])
    star = {**theta, **{name: theta[name] - ETA * g for name, g in zip(head, moved, strict=True)}}
    held = p.batch.holdout
    c_h = p.task.loss(functional_call(p.model, star, (held.x,)), held.y)
    v = dict(zip(head, torch.autograd.grad(c_h, [star[name] for name in head]), strict=True))
    along = tuple(v.get(name, torch.zeros_like(value)) for name, value in theta.items())
    with sdpa_kernel(SDPBackend.MATH):
        f, tangent = jvp(outputs, (tuple(value.detach() for value in theta.values()),), (along,))
    z, f = imputed.z.clone().requires_grad_(), f.detach().requires_grad_()
    (slope,) = torch.autograd.grad(student.cost(f, imputed._replace(z=z)), f, create_graph=True)
    (wanted,) = torch.autograd.grad(slope, z, -ETA * tangent)
    assert relative(d_z(p, last_layer), wanted) < 1e-8


def test_last_layer_equals_exact_where_all_but_the_head_is_frozen() -> None:
    p = problem()
    actual = d_z(p, last_layer)
    p.model.body.requires_grad_(False)
    assert relative(d_z(p, exact), actual) < 1e-8


def kernels(p: ToyProblem, function: object, eta: float | None) -> list[bool]:
    """Of each pass of the network, whether it was under the plain kernel alone."""
    observed: list[bool] = []
    hook = p.model.register_forward_pre_hook(
        lambda *_: observed.append(not torch.backends.cuda.flash_sdp_enabled())
    )
    d_z(p, function, eta=eta)
    hook.remove()
    return observed[1:]  # the first imputes


@pytest.mark.parametrize(
    ("function", "dropout", "eta", "wanted"),
    [
        (exact, 0.0, None, [False, True]),  # C^H, then the pass in forward mode
        (exact, 0.0, ETA, [False, False, True]),  # the inner step, C^H, forward mode
        (exact, 0.2, ETA, [True, False, True]),  # with dropout, the inner step meets the same masks
        (finite_difference, 0.0, ETA, [False] * 4),
        (last_layer, 0.0, ETA, [False] * 2),
    ],
)
def test_the_plain_kernel_is_around_the_pass_in_forward_mode_only(
    function: object, dropout: float, eta: float | None, wanted: list[bool]
) -> None:
    assert kernels(problem(dropout=dropout), function, eta) == wanted
    assert torch.backends.cuda.flash_sdp_enabled()


def test_fused_attention_has_no_forward_mode() -> None:
    """The reason for the plain kernel; once this fails, it is not needed."""
    q = torch.randn(2, 2, 8, 16)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.randn_like(q))
        with pytest.raises(NotImplementedError), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            scaled_dot_product_attention(dual, q, q)
        with use_math_attention():
            assert (
                forward_ad.unpack_dual(scaled_dot_product_attention(dual, q, q)).tangent is not None
            )


@pytest.mark.parametrize(
    ("dropout", "kind"), [(0.0, nullcontext), (0.2, type(use_math_attention()))]
)
def test_a_model_without_dropout_keeps_its_kernels(dropout: float, kind: type) -> None:
    assert isinstance(use_same_attention(bert(dropout)), kind)
    assert isinstance(use_same_attention(bert(dropout).eval()), nullcontext)


def test_dropout_is_seen_in_modules_that_hold_it_as_a_number() -> None:
    assert has_dropout(torch.nn.MultiheadAttention(4, 2, dropout=0.1))
    assert not has_dropout(torch.nn.MultiheadAttention(4, 2)) and not has_dropout(
        torch.nn.Dropout(0.5).eval()
    )


@pytest.mark.parametrize(("eta", "moved"), [(None, True), (ETA, False)])
def test_the_generator_is_rewound_only_where_passes_repeat(eta: float | None, moved: bool) -> None:
    for function in (exact, last_layer):
        p = problem(dropout=0.2)
        imputed, student = p.impute(), p.student()
        before = torch.get_rng_state()
        function(Problem(p.model, p.params, student, imputed, p.c_h, eta=eta))
        assert torch.equal(torch.get_rng_state(), before) != moved
