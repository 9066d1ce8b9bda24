"""The bench: its counts against hand counts and torch's, and the command as typed, on a CPU."""

import json
import sys
from contextlib import closing
from statistics import median
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from l2i.cli import run_command
from l2i.config import replace
from l2i.experiments.benchmark.cases import GROUP_RECIPES, VARIANTS, make_splits, select_cases
from l2i.experiments.benchmark.roofline import Ceilings, Work, WorkCounter, count_step_work
from l2i.experiments.benchmark.timing import Memory, StepTimes, get_outer_period
from l2i.experiments.options import BenchOptions
from l2i.models.base import ModelConfig
from l2i.models.tcdcn import build_tcdcn
from l2i.training.trainer import Trainer

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
SMALL = ["bench", "--device", "cpu", "--steps", "1", "--blocks"]
FLOAT = 4  # bytes


def benched(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run_command([*SMALL, "3", "--json", *arguments]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


def tcdcn_multiplications() -> tuple[int, int]:
    """Of an image's forward in the paper's network for 60 × 60 faces: the first layer's, all."""
    layers = [
        20 * 25 * 56**2,
        48 * 20 * 25 * 24**2,
        64 * 48 * 9 * 10**2,
        80 * 64 * 9 * 3**2,
        720 * 256,
        256 * 10,
    ]
    return layers[0], sum(layers)


def encoder_operations(*, depth: int, width: int, length: int, classes: int) -> int:
    """Of a text's forward: a layer's four matrices and two four times as large, attention, head."""
    linear = 2 * 12 * width**2 * length
    attention = 4 * length**2 * width
    return (
        depth * (linear + attention) + 2 * width**2 + 2 * width * classes
    )  # the pooler has the first token alone


def attended(
    x: list[torch.Tensor], mask: torch.Tensor | None, *, dropout: float = 0.0
) -> tuple[WorkCounter, WorkCounter]:
    """The counts of attention and of its backward."""
    q, k, v = x
    with WorkCounter() as forward:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    with WorkCounter() as backward:
        torch.autograd.grad(out, x, torch.empty_like(out))
    return forward, backward


def test_a_convolution_counts_as_by_hand_forward_and_backward() -> None:
    layer, x = nn.Conv2d(3, 8, 3, padding=1), torch.rand(2, 3, 6, 6, requires_grad=True)
    images, kernels, maps = 2 * 3 * 36, 8 * 3 * 9, 2 * 8 * 36
    with WorkCounter() as forward:
        out = layer(x)
    assert forward.operations == 2 * maps * 3 * 9
    assert forward.bytes == FLOAT * (images + kernels + 8 + maps)
    with WorkCounter() as backward:
        torch.autograd.grad(out, [x, *layer.parameters()], torch.rand_like(out))
    assert backward.operations == 2 * forward.operations
    assert backward.bytes == FLOAT * (maps + 2 * images + 2 * kernels + 8)


def test_a_backward_that_no_image_needs_reads_no_kernels() -> None:
    layer, x = nn.Conv2d(3, 8, 3, padding=1, bias=False), torch.rand(2, 3, 6, 6)
    out = layer(x)
    with WorkCounter() as backward:
        torch.autograd.grad(out, layer.weight, torch.rand_like(out))
    assert backward.operations == 2 * out.numel() * 3 * 9
    assert backward.bytes == FLOAT * (out.numel() + x.numel() + layer.weight.numel())


def test_tangents_count() -> None:
    layer, x = nn.Conv2d(3, 8, 3, bias=False), torch.rand(2, 3, 6, 6)
    with forward_ad.dual_level(), WorkCounter() as counter:
        kernels = forward_ad.make_dual(layer.weight.detach(), torch.rand_like(layer.weight))
        torch.conv2d(forward_ad.make_dual(x, torch.rand_like(x)), kernels)
    assert (
        counter.operations == 3 * 2 * (2 * 8 * 16) * 3 * 9
    )  # Φ, and a tangent by its input and by its kernels


def test_half_precision_counts_half_the_bytes_and_an_expanded_tensor_once() -> None:
    layer, x = nn.Linear(5, 7, bias=False), torch.rand(3, 5)
    with WorkCounter() as counter, torch.autocast("cpu", torch.bfloat16):
        layer(x)
    assert (counter.operations, counter.bytes) == (2 * 3 * 5 * 7, 2 * (15 + 35 + 21))
    with WorkCounter() as counter:
        torch.mm(torch.rand(1, 5).expand(3, 5), torch.rand(5, 7))
    assert counter.bytes == FLOAT * (5 + 35 + 21)


def test_attention_in_one_kernel_counts_as_its_two_products_forward_and_backward() -> None:
    x = [torch.rand(2, 3, 8, 4, requires_grad=True) for _ in range(3)]
    mask = torch.ones(2, 1, 1, 8, dtype=torch.bool).expand(-1, 1, 8, -1)
    forward, backward = attended(x, mask)
    assert (forward.operations, backward.operations) == (
        2 * 2 * (2 * 3 * 8 * 8 * 4),
        4 * 2 * (2 * 3 * 8 * 8 * 4),
    )
    assert (forward.bytes, backward.bytes) == (4 * FLOAT * x[0].numel(), 7 * FLOAT * x[0].numel())
    with sdpa_kernel(SDPBackend.MATH):
        plain = attended(x, mask)
    dropped = attended(x, mask, dropout=0.1)  # of which a CPU has no kernel
    for counted in (plain, dropped):
        assert [c.operations for c in counted] == [forward.operations, backward.operations]
        assert counted[0].bytes > forward.bytes


@pytest.mark.parametrize("kernel", ["flash", "efficient", "cudnn"])
def test_the_attention_kernels_of_a_gpu_count_alike(kernel: str) -> None:
    x = [
        torch.empty(2, 3, 8, 32, dtype=torch.bfloat16, device="meta", requires_grad=True)
        for _ in range(3)
    ]
    bias = torch.empty(2, 1, 8, 8, dtype=torch.bfloat16, device="meta").expand(-1, 3, -1, -1)
    rest: tuple[Any, ...] = (0.1,) if kernel == "flash" else (bias, True, 0.1)
    with WorkCounter() as forward:
        out, *_ = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention")(*x, *rest)
    with WorkCounter() as backward:
        torch.autograd.grad(out, x, torch.empty_like(out))
    assert (forward.operations, backward.operations) == (
        4 * 2 * 3 * 8 * 8 * 32,
        8 * 2 * 3 * 8 * 8 * 32,
    )
    assert (forward.bytes, backward.bytes) == (4 * 2 * x[0].numel(), 7 * 2 * x[0].numel())


@pytest.mark.parametrize("group", ["landmarks", "text"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_has_the_operations_that_torch_counts(variant: str, group: str) -> None:
    case = select_cases(BenchOptions(groups=(group,), variants=(variant,), engine="eager"), CPU)[
        group
    ][0]
    trainer = Trainer(case.run, splits=make_splits(group, CPU, case.run))
    with closing(trainer), FlopCounterMode(display=False) as torchs, WorkCounter() as ours:
        trainer.step(0)
    assert ours.operations == torchs.get_total_flops() > 0


def test_a_step_with_an_outer_one_now_and_then_counts_its_share_of_it() -> None:
    case = select_cases(
        BenchOptions(groups=("landmarks",), variants=("last-layer",), engine="eager"), CPU
    )["landmarks"][0]
    splits = make_splits("landmarks", CPU, case.run)
    never, always, seldom = (
        count_step_work(replace(case.run, l2i=changes), splits).operations
        for changes in ({"update": "off"}, {}, {"every": 4})
    )
    assert never < seldom < always and seldom == never + (always - never) // 4


def test_the_floor_is_the_longer_of_the_two_and_ratios_are_taken_a_round_at_a_time() -> None:
    limits = Ceilings(bytes_per_second=10, operations_per_second=100)
    assert Work(operations=50, bytes=1).compute_floor_ms(limits) == 500
    assert Work(operations=50, bytes=20).compute_floor_ms(limits) == 2000
    faster = Ceilings(bytes_per_second=4, operations_per_second=200)
    assert Ceilings.take_maximum([limits, faster]) == Ceilings(
        bytes_per_second=10, operations_per_second=200
    )
    base, other = (
        StepTimes(blocks=ms, host_us=None, memory=Memory())
        for ms in ((1.0, 9.0, 2.0), (2.0, 18.0, 5.0))
    )
    assert (other.ms, other.compute_ratio(base)) == (5, 2)


def test_json_has_every_metric_and_they_make_sense(capsys: pytest.CaptureFixture[str]) -> None:
    printed = benched(
        capsys, "--groups", "mean-teacher", "landmarks", "--variants", "exact", "base"
    )
    assert {"hardware", "versions", "threads", "definitions"} <= set(printed)
    assert (printed["device"], printed["precision"], printed["engine"]) == (
        "cpu",
        "float32",
        "eager",
    )
    assert min(printed["ceilings"].values()) > 1e8
    wide_base, wide_exact, base, exact = printed["cases"]
    assert (base["variant"], base["ratio"], exact["variant"]) == ("base", 1, "exact")
    assert wide_exact["ratio"] > 1 and max(wide_base["share"], wide_exact["share"]) < 1
    assert (
        exact["ratio"] > 1
        and exact["operations"] > 2 * base["operations"]
        and exact["bytes"] > base["bytes"]
    )
    assert exact["batch"] == {"labeled": 16, "unlabeled": 16, "holdout": 16, "outer_batch_size": 16}
    for case in printed["cases"]:
        assert case["ms_min"] <= case["ms"] <= case["ms_max"] and case["host_us"] is None
        assert case["floor_ms"] > 0 and case["share"] == pytest.approx(
            case["floor_ms"] / case["ms"]
        )
        assert case["images_per_second"] == pytest.approx(32e3 / case["ms"])
        samples = 32 if case["variant"] == "base" else 48  # with the hold-out ones
        assert case["samples_per_second"] * case["ms"] == pytest.approx(1e3 * samples)
        assert set(case["memory_mib"]) == {"reserved", "allocated", "resident"}
    first, forward = tcdcn_multiplications()
    # 16 imputed; 16 labelled and 16 students' forward and backward, but no gradient of the images
    assert base["operations"] == pytest.approx(
        2 * (16 * forward + 32 * (3 * forward - first)), rel=1e-4
    )


def test_checkpoints_are_timed_with_and_without(capsys: pytest.CaptureFixture[str]) -> None:
    printed = benched(capsys, "--groups", "landmarks", "--variants", "base")["saving"]
    assert (printed["group"], printed["variant"], printed["every"]) == ("landmarks", "base", 1)
    assert (
        len(printed["ms_with"]) == len(printed["ms_without"]) == 3 and min(printed["ms_with"]) > 0
    )
    assert printed["cost"] == 1 - median(
        a / b for a, b in zip(printed["ms_without"], printed["ms_with"], strict=True)
    )
    parameters = sum(p.numel() for p in build_tcdcn((1, 60, 60), 10, ModelConfig()).parameters())
    assert printed["mib"] * 2**20 > 3 * FLOAT * parameters  # the model, its average and a moment


def test_texts_are_benched_with_every_variant(capsys: pytest.CaptureFixture[str]) -> None:
    printed = benched(capsys, "--groups", "text")
    assert [case["variant"] for case in printed["cases"]] == list(VARIANTS)
    for case in printed["cases"]:
        assert (case["group"], case["network"], case["images_per_second"]) == (
            "text",
            "bert-2-64",
            None,
        )
        samples = 8 + 24 + (0 if case["variant"] == "base" else 8)
        assert case["samples_per_second"] * case["ms"] == pytest.approx(1e3 * samples)
    base, _, exact, _ = printed["cases"]
    forward = encoder_operations(depth=2, width=64, length=32, classes=2)
    # 24 imputed; 8 labelled and 24 students' forward and backward
    assert base["operations"] == pytest.approx((24 + 3 * (8 + 24)) * forward, rel=1e-4)
    assert exact["operations"] > 2 * base["operations"] and exact["bytes"] > base["bytes"]


def test_made_up_texts_have_ends_and_no_padding_and_the_strong_view_replaces_words() -> None:
    run_ = select_cases(BenchOptions(groups=("text",), variants=("base",)), CPU)["text"][0].run
    splits = make_splits("text", CPU, run_)
    x = splits.unlabeled.x
    assert isinstance(x, torch.Tensor) and splits.vocabulary is not None
    assert (
        x.shape[1] == run_.data.text.length == 32
        and x[:, 1:-1].min() > 103
        and x.max() < splits.vocabulary.size
    )
    assert set(x[:, 0].tolist()) == {101} and set(x[:, -1].tolist()) == {102}
    view, _ = splits.make_view(run_.data.words, x, torch.Generator().manual_seed(0))
    assert (view[:, [0, -1]] == x[:, [0, -1]]).all()
    assert (view != x)[:, 1:-1].float().mean().item() == pytest.approx(0.3, abs=0.05)


def test_without_what_reads_texts_the_other_groups_are_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert list(select_cases(BenchOptions(), CPU)) == [
        group for group in GROUP_RECIPES if group != "text"
    ]
    assert run_command([*SMALL, "1", "--groups", "landmarks", "text"]) == 2
    assert "pip install 'l2i[text]'" in capsys.readouterr().err


def test_the_table_prints_every_row_and_its_conditions(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run_command([*SMALL, "1", "--groups", "landmarks", "--variants", "learnable", "base"]) == 0
    )
    printed = capsys.readouterr()
    rows = [line.split()[:4] for line in printed.out.splitlines() if "16+16" in line]
    assert rows == [
        ["landmarks", "base", "tcdcn", "16+16"],
        ["landmarks", "learnable", "tcdcn", "16+16"],
    ]
    assert "Ceilings: " in printed.out and "torch" in printed.out
    assert "samples/s: " in printed.out and "sequences, for texts" in printed.out
    assert "…" not in printed.out and "landmarks: timing base, learnable" in printed.err


def test_on_a_gpu_the_runs_are_the_recipes() -> None:
    groups = select_cases(BenchOptions(), torch.device("cuda"))
    assert list(groups) == list(GROUP_RECIPES) and all(
        len(cases) == len(VARIANTS) for cases in groups.values()
    )
    last = groups["fixmatch"][1].run
    assert (last.batch.labeled, last.batch.unlabeled, last.l2i.outer_batch_size) == (64, 448, 64)
    assert last.data.strong.randaugment == 2 and groups["fixmatch"][0].run.l2i.outer_batch_size == 0
    fast = groups["fixmatch-fast"][1].run
    assert (fast.batch.unlabeled, fast.l2i.outer_batch_size, fast.optim.name) == (448, 64, "sgd")
    assert [get_outer_period(case.run) for case in groups["fixmatch-fast"]] == [1, 8, 8, 8]
    assert groups["mean-teacher"][0].network == "wide-resnet-28-2"
    assert groups["landmarks"][1].run.batch.unlabeled == 128
    text = groups["text"][0]
    assert (text.network, text.run.model.weights, text.run.data.text.length) == (
        "bert-6-384",
        "random",
        128,
    )
    assert (text.run.batch.labeled, text.run.batch.unlabeled, text.run.batch.holdout) == (8, 24, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--groups", "gan"],
            "unknown group 'gan'; choose one of mean-teacher, mixmatch, fixmatch, fixmatch-fast, ",
        ),
        (["--groups", "fixmach"], "perhaps you meant 'fixmatch'"),
        (["--variants", "sum"], "choose one of base, last-layer, exact, learnable"),
        (["--blocks", "-1"], "blocks=-1 must be at least 0"),
        (["--precision", "half"], "--precision"),
        (["--device", "tpu?"], "is not a device"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["bench", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n") == 1 and not printed.out
