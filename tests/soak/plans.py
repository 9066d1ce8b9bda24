"""Cases: a short run and what it is to meet, drawn from a seed."""

import random
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from disturbances import KINDS, Done
from disturbed import RECIPES, Disturbed, small_disk, undisturbed

LAST = ("SIGKILL of a worker", "SIGTERM of a worker")  # after which a run is done, by itself
TOGETHER = (*LAST, "SIGKILL of torchrun alone")  # for several processes alone
MOVED, FULL, LIMIT = "other number of processes", "full disk", "file size limit"
ALONE = [(kind, 1) for kind in KINDS if kind not in TOGETHER]
PAIRS = [*ALONE, *ALONE, *((kind, 2) for kind in (*KINDS, *TOGETHER))]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A case; all else that is random in it is drawn from its seed."""

    seed: int
    kinds: tuple[str, ...]
    processes: int = 1
    recipe: str = "fixmatch-l2i"
    save_every: int = 5
    keep: int = 2

    def __str__(self) -> str:
        return f"{self.seed}: {self.recipe} on {self.processes}, {', then '.join(self.kinds)}"


def planned(seed: int) -> Plan:
    """The case of a seed: seeds in a row go through all kinds, and many meet more than one."""
    draw = random.Random(f"plan {seed}")
    first, processes = PAIRS[seed % len(PAIRS)]
    unfit = (*TOGETHER, MOVED, first) if processes == 1 or first == MOVED else (MOVED, first)
    others = [kind for kind in KINDS if kind not in unfit]
    kinds = [first, *draw.sample(others, draw.randint(0, 3 - processes))]
    return Plan(
        seed=seed,
        kinds=tuple(sorted(kinds, key=lambda kind: kind in LAST)),
        processes=processes,
        recipe=draw.choice(list(RECIPES)),
        save_every=draw.randint(3, 7),
        keep=draw.randint(2, 3),
    )


def soaked(plan: Plan, folder: Path, shared: Path) -> dict[str, Done]:
    """Disturb a run as planned and compare it with the one in `shared`; what it met, by kind."""
    draw, moves = random.Random(f"moments {plan.seed}"), MOVED in plan.kinds
    reference = undisturbed(shared, plan.recipe, processes=plan.processes, moves=moves)
    saves = {"save_every": plan.save_every, "keep": plan.keep}
    run = Disturbed(folder, plan.recipe, processes=plan.processes, moves=moves, **saves)
    met: dict[str, Done] = {}
    with ExitStack() as stack:
        own_disk = FULL in plan.kinds and stack.enter_context(small_disk(run.disk))
        for planned_kind in plan.kinds:
            kind = LIMIT if planned_kind == FULL and not own_disk else planned_kind
            if not run.done:
                met[kind] = met.get(kind, Counter()) + KINDS[kind](run, draw)
        if not run.done:
            run.finish()
        run.check(reference)
    return met
