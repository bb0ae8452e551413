"""What an operator, a broker and another engine can do to stores and lakes, each as lines of shell.

A refusal is fine: what counts is what is left after it. Where there is nothing to do it to, nothing is done.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from tests.histories import broker
from tests.histories.lake_directories import CATALOG, new_lake
from tests.histories.model import Backup, Interrupted, Lake, Outcome, Store, World

T = TypeVar("T")

MOST_STORES, MOST_BACKUPS = 3, 4
_MOST_MENDS = 3
JOURNAL = "journal.db"
MENDING = (
    "lake rebuild",
    "lake relocate",
    "lake promote",
    "lake info",
    "lake rebuild --take-over",
    "lake relocate --take-over",
    "lake rebuild --dry-run",
)
DATABASES = {"catalog": (CATALOG,), "journal": (JOURNAL,), "both": (CATALOG, JOURNAL)}

_NAMED = re.compile(
    r"storage-engine (lake relocate|lake rebuild|lake promote|verify --level bytes --renew|gc --undo|"
    r"stamp --new|stamp|adopt|move [\w-]+|init-lake)"
)
_DIGEST = re.compile(r"the plan is ([0-9a-f]{64})")


def pick(choices: Sequence[T], number: int) -> T | None:
    """Return one of the choices; None where there is none."""
    return choices[number % len(choices)] if choices else None


# -- the engine's daily work


def begin(world: World) -> None:
    """What every history begins with: a store with segments, and a lake that one cleanup has written to."""
    new_store(world)
    new_lake(world)
    seal(world, world.stores[0], 2)
    clean(world, world.stores[0], world.lakes[0])


def clean(
    world: World,
    store: Store,
    lake: Lake,
    second: Lake | None = None,
    *,
    most: int | None = None,
    off: bool = False,
    kill: int | None = None,
) -> Outcome:
    if second is lake:
        second = None
    run_key = world.new_name("run").replace("/", "-")
    words = ["clean", store.path, *_lakes(lake, second), "--manual", "--run-key", run_key]
    words += ["--max-segments", str(most)] if most else []
    words += ["--archive-policy", "off"] if off else []
    lakes = (lake,) if second is None else (lake, second)
    outcome = world.command(*words, kill=kill)
    world.seen(lakes, let_go=off)
    if outcome.killed and not off:
        world.interrupted.append(Interrupted(store, lakes, tuple(words)))
    return outcome


def clean_with_mending(world: World, store: Store, lake: Lake, kill: int | None) -> None:
    """Clean, and as long as that is refused do what the refusal names; ``kill`` is of what mends."""
    for _ in range(_MOST_MENDS):
        if clean(world, store, lake).done:
            return
        follow_advice(world, kill)
        kill = None


def resume(world: World, number: int, kill: int | None) -> None:
    """Go on with a cleanup that was killed, by the same words."""
    one = pick(world.interrupted, number)
    if one is None or not (world.path(one.words[1]) / "commitlog").is_dir():
        return
    outcome = world.command(*one.words, kill=kill)
    world.seen(one.lakes)
    if not outcome.killed:
        world.interrupted.remove(one)


def archive(
    world: World, store: Store, lake: Lake, second: Lake | None = None, *, kill: int | None = None
) -> Outcome:
    outcome = world.command("archive", store.path, *_lakes(lake, second), kill=kill)
    world.seen()
    if outcome.done:
        world.archived(store, (lake,) if second is None else (lake, second))
    return outcome


def waive(world: World, store: Store, lake: Lake) -> None:
    """Clean; where that is refused for want of a proof, waive the plan and go on."""
    outcome = clean(world, store, lake)
    said = _DIGEST.search(outcome.text)
    if said is None:
        return
    run_key = f"run-{world.numbers['run'] - 1}"
    world.command("waive", said[1], "--lake", lake.path, "--reason", "test")
    world.command("clean", store.path, "--lake", lake.path, "--manual", "--run-key", run_key)
    world.seen((lake,), let_go=True)


def verify(world: World, lake: Lake, *, renew: bool, store: Store | None, kill: int | None) -> None:
    words = ["verify", "--lake", lake.path, "--level", "bytes", *(["--renew"] if renew else [])]
    world.command(*words, *([store.path] if store else []), kill=kill)
    world.seen()


def collect_garbage(world: World, lake: Lake, *, days: int, kill: int | None) -> None:
    """Let days pass for a lake's files; then take what is garbage, and what is in the trash for good."""
    if days:
        world.verb("age", f"{world.holder(lake).path}/warehouse", str(days))
    world.command("gc", "--lake", lake.path, "--grace", "1", "--trash-days", "0", "--delete", kill=kill)


def undo_garbage(world: World, lake: Lake, kill: int | None) -> None:
    world.command("gc", "--lake", lake.path, "--undo", kill=kill)


def maintain(world: World, lake: Lake, kill: int | None) -> None:
    world.command("maintain", "--lake", lake.path, kill=kill)


# -- decisions


def adopt(world: World, store: Store, lake: Lake, *, force: bool, kill: int | None = None) -> None:
    words = ("adopt", store.path, "--lake", lake.path, "--reason", "test", *(("--force",) if force else ()))
    world.command(*words, kill=kill)


def stamp(world: World, store: Store, lake: Lake, *, new: bool, kill: int | None = None) -> None:
    words = ("stamp", store.path, "--lake", lake.path, "--reason", "test", *(("--new",) if new else ()))
    world.command(*words, kill=kill)


def accept_loss(world: World, store: Store, lake: Lake) -> None:
    """Accept what verification calls LOST."""
    words = ("verify", store.path, "--lake", lake.path, "--level", "receipts", "--json")
    said = world.command(*words).answer["out"]
    try:
        ranges = [one for result in json.loads(said) for one in result["ranges"]]
    except (ValueError, TypeError, KeyError):
        return
    for one in ranges:
        if one["where"] == "LOST":
            words = ("--from", str(one["start_offset"]), "--to", str(one["end_offset"]))
            world.command("accept-loss", store.path, "--lake", lake.path, *words, "--reason", "test")
            return


def follow_advice(world: World, kill: int | None) -> None:
    """Do what the last refusal names."""
    text, words = world.refused
    lake = next((one for one in world.mounted if one.path in words), None)
    store = next((one for one in world.stores if one.path in words), None)
    for named in list(dict.fromkeys(_NAMED.findall(text)))[:2]:
        if lake is None:
            continue
        if named == "adopt" and store is not None:
            adopt(world, store, lake, force=False, kill=kill)
        elif named.startswith("stamp") and store is not None:
            stamp(world, store, lake, new=named.endswith("--new"), kill=kill)
        elif named.startswith("move") and store is not None:
            world.command(*named.split(), store.path, "--lake", lake.path, kill=kill)
        elif not named.startswith(("adopt", "stamp", "move")):
            mend(world, lake, named, kill=kill)


def mend(world: World, lake: Lake, named: str, *, kill: int | None = None) -> Outcome:
    """Run a command that errors name, on a lake."""
    more = ("--reason", "test") if named == "lake promote" else ()
    outcome = world.command(*shlex.split(named), "--lake", lake.path, *more, kill=kill)
    world.seen()
    return outcome


def _mending(named: str) -> Callable[..., object]:
    return lambda world, lake, kill: mend(world, lake, named, kill=kill)


# -- catalogs and journals


def back_up(world: World, lake: Lake) -> None:
    """Keep catalog and journal as they are now."""
    names = tuple(name for name in (CATALOG, JOURNAL) if (world.path(lake.path) / name).is_file())
    if not names or len(world.backups) >= MOST_BACKUPS:
        return
    directory = world.new_name("backups")
    world.shell(f"mkdir {directory}")
    for name in names:
        world.verb("copy-database", f"{lake.path}/{name}", f"{directory}/{name}")
    world.backups.append(Backup(lake, directory, names))


def roll_back(world: World, lake: Lake, databases: str) -> None:
    """Put a lake's catalog, journal or both back as they were when they were kept last."""
    kept = [one for one in world.backups if one.lake is lake]
    for name in DATABASES[databases]:
        if kept and name in kept[-1].names:
            world.verb("copy-database", f"{kept[-1].directory}/{name}", f"{lake.path}/{name}")


def lose(world: World, lake: Lake, databases: str) -> None:
    """Lose catalog, journal or both."""
    paths = " ".join(f"{lake.path}/{name}*" for name in DATABASES[databases])
    world.shell(f"rm -f {paths}")


# -- other engines


def compact(world: World, lake: Lake) -> None:
    world.verb("compact", lake.path)


def expire(world: World, lake: Lake) -> None:
    world.verb("expire", lake.path)


# -- stores


def new_store(world: World) -> Store | None:
    if len(world.stores) >= MOST_STORES:
        return None
    store = Store(world.new_name("stores"))
    world.verb("make-store", store.path)
    world.stores.append(store)
    return store


def seal(world: World, store: Store, count: int) -> None:
    world.verb("seal", store.path, str(count), world.new_name("serial"))
    world.sealed(store)


def recover(world: World, store: Store, keep: int) -> None:
    """A broker that crashed truncates its log and writes the same offsets again."""
    keep = min(keep, len(broker.segments(world.path(store.path))) - 1)
    world.verb("recover", store.path, str(keep), world.new_name("serial"))
    world.seen(let_go=True)
    world.sealed(store)


def delete_oldest(world: World, store: Store) -> None:
    """The broker, or somebody, deletes the oldest segment."""
    if broker.sealed(world.path(store.path)):
        world.verb("delete-oldest", store.path)
        world.seen(let_go=True)


def copy_store(world: World, store: Store) -> None:
    if len(world.stores) >= MOST_STORES:
        return
    name = world.new_name("stores")
    world.shell(f"cp -a {store.path} {name}")
    world.stores.append(Store(name, {key: one.copied() for key, one in store.segments.items()}))


def move_store(world: World, store: Store) -> None:
    name = world.new_name("stores")
    world.shell(f"mv {store.path} {name}")
    store.path = name


def lose_stamp(world: World, store: Store) -> None:
    world.shell(f"rm -rf {store.path}/.storage-engine")


def _lakes(lake: Lake, second: Lake | None) -> Iterable[str]:
    yield from ("--lake", lake.path)
    if second is not None:
        yield from ("--second-lake", second.path)


TO_LAKES: dict[str, Callable[..., object]] = {
    "garbage, undone": lambda world, lake, kill: undo_garbage(world, lake, kill),
    "maintain": lambda world, lake, kill: maintain(world, lake, kill),
    "verify": lambda world, lake, kill: verify(world, lake, renew=False, store=None, kill=kill),
    "verify and renew": lambda world, lake, kill: verify(world, lake, renew=True, store=None, kill=kill),
    "compact": lambda world, lake, kill: compact(world, lake),
    "expire": lambda world, lake, kill: expire(world, lake),
    **{named: _mending(named) for named in MENDING},
}
"""What is done to one lake."""


TO_STORES: dict[str, Callable[..., object]] = {
    "without archive": lambda world, store, lake, kill: clean(world, store, lake, most=1, off=True),
    "waive": lambda world, store, lake, kill: waive(world, store, lake),
    "accept loss": lambda world, store, lake, kill: accept_loss(world, store, lake),
    "verify": lambda world, store, lake, kill: verify(world, lake, renew=True, store=store, kill=kill),
    "adopt": lambda world, store, lake, kill: adopt(world, store, lake, force=False, kill=kill),
    "adopt by force": lambda world, store, lake, kill: adopt(world, store, lake, force=True, kill=kill),
    "stamp": lambda world, store, lake, kill: stamp(world, store, lake, new=False, kill=kill),
    "stamp anew": lambda world, store, lake, kill: stamp(world, store, lake, new=True, kill=kill),
    "new store": lambda world, store, lake, kill: new_store(world),
    "recover": lambda world, store, lake, kill: recover(world, store, 1),
    "delete oldest": lambda world, store, lake, kill: delete_oldest(world, store),
    "copy store": lambda world, store, lake, kill: copy_store(world, store),
    "move store": lambda world, store, lake, kill: move_store(world, store),
    "lose stamp": lambda world, store, lake, kill: lose_stamp(world, store),
}
"""What a person decides about a store, and what happens to it."""

THEN: dict[str, Callable[..., object]] = {
    "": lambda world, store, lake: None,
    "clean": lambda world, store, lake: (seal(world, store, 1), clean(world, store, lake)),
    "mend": lambda world, store, lake: (seal(world, store, 1), clean_with_mending(world, store, lake, None)),
    "gc": lambda world, store, lake: collect_garbage(world, lake, days=3, kill=None),
}
"""What comes next, most of all, after something happened to a lake."""
