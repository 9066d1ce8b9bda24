"""What a run may meet: each function starts a command, disturbs it, sees it end, and counts."""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from attempts import LOOK, Attempt, steps_saved
from disturbed import STEPS, Disturbed, mark

from waiting import wait_until

FULL = "the disk is full: cannot write"
STOPPED = "; the same command resumes from there"
LONGEST = 64 * 2**10  # bytes: longer than anything that a run writes beside its checkpoints
START = 3.0  # seconds, in which a process has just begun

Draw = random.Random
Done = Counter[str]


def counted(**what: bool) -> Done:
    """What was done, where it was."""
    return Done({name: 1 for name, came in what.items() if came})


def moment(run: Disturbed, attempt: Attempt, draw: Draw) -> str:
    """Wait for a random moment: "early" or "within" the steps, maybe saving; "" if it has ended."""
    when, saved = draw.choice(("early", "step", "step", "saving")), max(0, steps_saved(run.out))
    middle = max(saved + 1, (saved + STEPS) // 2)
    if when == "early":
        end = time.monotonic() + draw.uniform(0, START * run.processes)
        attempt.until(lambda: time.monotonic() > end or steps_saved(run.out) >= middle)
    elif attempt.reached(draw.randint(saved + 1, middle)):
        if when == "saving":
            attempt.saving((middle + STEPS) // 2)
        else:
            time.sleep(draw.uniform(0, 0.1))
    there = attempt.process.poll() is None
    return ("early" if when == "early" else "within") if there else ""


def kill(run: Disturbed, draw: Draw) -> Done:
    """SIGKILL, for all processes at once."""
    with run.start() as attempt:
        return counted(SIGKILL=bool(moment(run, attempt, draw)) and attempt.kill_all())


def terminate(run: Disturbed, draw: Draw) -> Done:
    """SIGTERM: the run saves and says where it stopped; torchrun passes it on, with its code."""
    with run.start() as attempt:
        when = moment(run, attempt, draw)
        came = bool(when) and attempt.send(signal.SIGTERM, [attempt.process.pid])
        code, said = (
            attempt.ended(0, -signal.SIGTERM, 143 if run.processes == 1 else 1),
            attempt.said(),
        )
        assert run.done or when != "within" or STOPPED in said, attempt.printed()
        assert STOPPED not in said or f"stopped at step {steps_saved(run.out)}{STOPPED}" in said, (
            attempt.printed()
        )
        assert run.processes > 1 or (code == 143) == (STOPPED in said), attempt.printed()
        run.intact()
        return counted(SIGTERM=came and code != 0)


def kill_worker(run: Disturbed, draw: Draw) -> Done:
    """SIGKILL for a worker, once or twice: torchrun restarts the group, and the run goes on."""
    return to_worker(run, draw, signal.SIGKILL)


def terminate_worker(run: Disturbed, draw: Draw) -> Done:
    """SIGTERM for a worker: all stop, torchrun restarts them, and the run goes on by itself."""
    return to_worker(run, draw, signal.SIGTERM)


def to_worker(run: Disturbed, draw: Draw, number: signal.Signals) -> Done:
    done = Done()
    with run.start(restarts=3) as attempt:
        for _ in range(draw.randint(1, 2)):
            if not attempt.until(lambda: len(attempt.workers()) == run.processes):
                break
            there, workers = moment(run, attempt, draw), attempt.workers()
            if there and workers:
                done[number.name] += attempt.send(number, [draw.choice(workers)])
        attempt.ended(0)
    return done


def kill_launcher(run: Disturbed, draw: Draw) -> Done:
    """SIGKILL for torchrun alone: its workers go on to the end, or the same command does."""
    with run.start() as attempt:
        came = bool(moment(run, attempt, draw)) and attempt.send(
            signal.SIGKILL, [attempt.process.pid]
        )
        attempt.ended(0, -signal.SIGKILL)
        return counted(SIGKILL=came)


def truncate(run: Disturbed, draw: Draw) -> Done:
    """The newest checkpoint ends at a random byte."""
    return damage(run, draw, lambda content: content[: draw.randrange(len(content))])


def tear(run: Disturbed, draw: Draw) -> Done:
    """The newest checkpoint has wrong bytes, or a hole of zeros."""

    def torn(content: bytes) -> bytes:
        first, changed = draw.randrange(len(content)), bytearray(content)
        if draw.random() < 0.5:
            changed[first : first + 4096] = bytes(len(content[first : first + 4096]))
        else:
            for place in draw.choices(range(len(content)), k=draw.randint(1, 20)):
                changed[place] ^= draw.randint(1, 255)
        return bytes(changed) if changed != content else torn(content)

    return damage(run, draw, torn)


def damage(run: Disturbed, draw: Draw, damaged: Callable[[bytes], bytes]) -> Done:
    """Kill the run once it has two whole checkpoints, and damage the newest."""
    with run.start() as attempt:
        attempt.until(lambda: len(run.whole()) >= 2)
        saved = steps_saved(run.out)
        attempt.reached(draw.randint(saved, max(saved, (saved + STEPS) // 2)))
        killed = attempt.kill_all()
    if run.done or len(run.whole()) < 2:
        return counted(SIGKILL=killed)
    newest = run.whole()[-1]
    newest.write_bytes(damaged(newest.read_bytes()))
    run.damaged[mark(newest)] = newest
    return counted(SIGKILL=killed, damaged=True)


def leave_behind(run: Disturbed, draw: Draw) -> Done:
    """Files that were never finished lie in the folder of a run that was killed."""
    done = kill(run, draw)
    if run.done or not run.whole():
        return done
    newest, folder = run.whole()[-1], run.out / "checkpoints"
    begun = folder / f"{int(newest.stem) + run.save_every:010}.safetensors.partial"
    for path in (begun, run.out / "config.json.partial", run.out / "result.json.partial"):
        path.write_bytes(newest.read_bytes()[: draw.randrange(newest.stat().st_size)])
    return done + counted(damaged=True)


def limit_size(run: Disturbed, draw: Draw) -> Done:
    """No file may be as long as a checkpoint from some moment on."""
    with run.start() as attempt:
        came = bool(moment(run, attempt, draw))
        attempt.limit(LONGEST)
        return ran_full(run, attempt, came)


def fill_disk(run: Disturbed, draw: Draw) -> Done:
    """The disk is full from some moment on; then there is room again."""
    ballast = run.disk / "ballast"
    with run.start() as attempt:
        came = bool(moment(run, attempt, draw))
        wait_until(
            lambda: filled(ballast) and attempt.process.poll() is not None,
            describe=attempt.printed,
            every=LOOK / 5,
        )
        done = ran_full(run, attempt, came)
    ballast.unlink()
    return done


def filled(path: Path) -> bool:
    """Take what room there is, to the last byte."""
    with path.open("ab", buffering=0) as file:
        for size in (2**20, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return True


def ran_full(run: Disturbed, attempt: Attempt, came: bool) -> Done:
    """Such a run says what is wrong, and its checkpoints are whole."""
    code = attempt.ended(0, 1)
    assert code == 0 or FULL in attempt.said(), attempt.printed()
    run.intact()
    return counted(full=came and code != 0)


def move(run: Disturbed, draw: Draw) -> Done:
    """Go on with another number of processes."""
    done = draw.choice((kill, terminate))(run, draw)
    run.processes = 3 - run.processes
    return done + counted(moved=not run.done and steps_saved(run.out) > 0)


KINDS: dict[str, Callable[[Disturbed, Draw], Done]] = {
    "SIGKILL": kill,
    "SIGTERM": terminate,
    "SIGKILL of a worker": kill_worker,
    "SIGTERM of a worker": terminate_worker,
    "SIGKILL of torchrun alone": kill_launcher,
    "truncated checkpoint": truncate,
    "torn checkpoint": tear,
    "unfinished files": leave_behind,
    "file size limit": limit_size,
    "full disk": fill_disk,
    "other number of processes": move,
}
