import os
import tempfile

os.environ["L2I_CACHE"] = tempfile.mkdtemp(prefix="l2i-tests-")  # not the user's
os.environ["HF_HUB_OFFLINE"] = "1"  # weights in tests are folders
# the command-line tests start processes of their own: one thread each keeps two test workers out
# of each other's way
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
