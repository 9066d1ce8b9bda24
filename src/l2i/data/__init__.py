"""The data sets, by name; each is one function that returns Splits."""

DATASETS: dict[str, str] = {
    "digits": "l2i.data.digits:digits",
}
