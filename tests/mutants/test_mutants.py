"""The lists of mutants: each names one place of the source, and tests that exist."""

import ast
from pathlib import Path

from mutants.run import ROOT, SOURCE, Mutant, load_mutants

MUTANTS = load_mutants()


def test_ids_are_unique() -> None:
    ids = [mutant.id for mutant in MUTANTS]
    assert sorted(set(ids)) == sorted(ids)


def find_fault(mutant: Mutant, text: str) -> str | None:
    """Say what is wrong with an entry, given the text of its source file."""
    if text.count(mutant.old) != 1:
        return f"{mutant.file} has {text.count(mutant.old)} such places"
    changed = text.replace(mutant.old, mutant.new)
    if ast.dump(ast.parse(changed)) == ast.dump(ast.parse(text)):
        return "it changes no code"
    return None


def test_a_mutant_changes_one_place_of_valid_source() -> None:
    texts = {m.file: (SOURCE / "l2i" / m.file).read_text(encoding="utf-8") for m in MUTANTS}
    faults = {mutant.id: find_fault(mutant, texts[mutant.file]) for mutant in MUTANTS}
    assert {name: fault for name, fault in faults.items() if fault is not None} == {}


def test_the_tests_of_a_mutant_exist() -> None:
    for mutant in MUTANTS:
        assert mutant.tests, mutant.id
        for test in mutant.tests + mutant.slow:
            path, *names = test.split("::")
            assert Path(ROOT, path).exists(), (mutant.id, path)
            text = Path(ROOT, path).read_text(encoding="utf-8") if names else ""
            assert all(f"{name.partition('[')[0]}(" in text for name in names), (mutant.id, test)
