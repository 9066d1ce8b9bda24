"""What turns a fit's raw rows into the network's inputs, from the JSON that it is kept as."""

from __future__ import annotations

from typing import Any, cast

from l2i.errors import InputError
from l2i.own.prepare import ImageInputs, TableInputs
from l2i.own.prepare_text import TextInputs
from l2i.plain import built

AnyInputs = TableInputs | ImageInputs | TextInputs
KINDS = {"table": TableInputs, "images": ImageInputs, "text": TextInputs}


def inputs_of(plain: dict[str, Any]) -> AnyInputs:
    """What `to_json` wrote; an InputError where it is something else."""
    fields = {name: value for name, value in plain.items() if name != "kind"}
    try:
        return cast(AnyInputs, built(KINDS[plain["kind"]], fields, "inputs."))
    except (KeyError, TypeError, RecursionError):
        raise InputError(
            "fit.json does not say how to read inputs; restore it, or fit again in another --out"
        ) from None
