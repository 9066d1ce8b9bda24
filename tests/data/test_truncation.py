"""What a run says of its texts."""

from dataclasses import replace

import torch

from l2i import Splits, Text
from l2i.data.tokenization import describe_truncation
from l2i.data.transforms.text import Vocabulary

NONE = torch.zeros(9, dtype=torch.bool)


def test_how_many_texts_have_a_back_translation_is_said() -> None:
    tokens = Vocabulary(
        0,
        torch.zeros(9, dtype=torch.bool),
        torch.zeros(9, dtype=torch.bool),
        torch.ones(9),
        torch.ones(9),
    )
    own = torch.tensor([[3, 4], [5, 6], [7, 0]])
    other = torch.tensor([[3, 4], [6, 5], [7, 8]])
    splits = Splits.from_arrays(
        labeled=(own[:2], [0, 1]),
        unlabeled=torch.stack([own, other], dim=1),
        test=(own[:2], [0, 1]),
        classes=2,
        vocabulary=tokens,
    )
    printed = "; 67 % of the texts fill all 2 tokens; longer ones keep their end"
    assert (
        describe_truncation(splits, Text())
        == printed + "; 2 unlabelled texts have a back-translation"
    )
    assert describe_truncation(replace(splits, unlabeled=splits.labeled), Text()).endswith(
        "keep their end"
    )
    assert describe_truncation(replace(splits, vocabulary=None), Text()) == ""
