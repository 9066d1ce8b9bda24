import tempfile
from pathlib import Path

import pytest
from harmless import Check, Loader, harmless
from hypothesis import settings
from hypothesis.configuration import set_hypothesis_home_dir
from loaders import LOADERS

set_hypothesis_home_dir(tempfile.mkdtemp(prefix="l2i-tests-"))  # not into the repository
# the same cases everywhere and always; `make fuzz` looks for new ones
settings.register_profile("fuzz", deadline=None, derandomize=True, database=None)


@pytest.fixture(scope="session")
def check(tmp_path_factory: pytest.TempPathFactory) -> Check:
    """Reads content by the loader of a name; each has a folder of its own, made ready once."""
    folders: dict[str, Path] = {}

    def checked(name: str, content: bytes) -> bool:
        loader: Loader = LOADERS[name]
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp(name)
            loader.prepare(folders[name])
        return harmless(loader, folders[name], content)

    return checked
