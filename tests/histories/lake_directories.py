"""What happens to lakes as directories, each as lines of shell: made, copied, moved, burned, mounted."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.histories.model import Lake, World

MOST_LAKES = 4
CATALOG = "catalog.db"


def new_lake(world: World) -> None:
    if len(world.lakes) >= MOST_LAKES:
        return
    name = world.new_name("lakes")
    world.lakes.append(Lake(name, name))
    world.command("init-lake", "--lake", name)


def make_lake_in_place(world: World, lake: Lake, kill: int | None) -> None:
    """Ask for a new lake where one is, was, or should be mounted."""
    world.command("init-lake", "--lake", lake.path, kill=kill)


def share_warehouse(world: World, lake: Lake) -> None:
    """Point a second catalog at a lake's warehouse."""
    if len(world.lakes) >= MOST_LAKES:
        return
    name = world.new_name("lakes")
    home = world.holder(lake).home
    world.lakes.append(Lake(name, name, home))
    described = {
        "type": "sql",
        "uri": f"sqlite:///$PWD/{name}/{CATALOG}",
        "warehouse": f"file://$PWD/{home}/warehouse",
    }
    quoted = json.dumps(described).replace('"', '\\"')
    world.shell(f'mkdir {name}; echo "{quoted}" > {name}/lake.json')
    world.command("init-lake", "--lake", name)


def copy_plainly(world: World, lake: Lake) -> None:
    if len(world.lakes) >= MOST_LAKES or lake.warehouse_at:
        return
    name = world.new_name("lakes")
    world.shell(f"cp -a {lake.path} {name}")
    world.lakes.append(Lake(name, name))


def copy_by_command(world: World, lake: Lake, kill: int | None) -> None:
    if len(world.lakes) >= MOST_LAKES:
        return
    name = world.new_name("lakes")
    outcome = world.command("lake", "copy", "--lake", lake.path, "--to", name, kill=kill)
    if world.path(name).is_dir():
        world.lakes.append(Lake(name, name))
        if outcome.done:
            world.backed_up(lake, world.lakes[-1])


def copy_again(world: World, lake: Lake, other: Lake, kill: int | None) -> None:
    """Bring a copy up to date, or a directory that is none."""
    if lake is other:
        return
    if world.command("lake", "copy", "--lake", lake.path, "--to", other.path, kill=kill).done:
        world.backed_up(lake, other)


def burn(world: World, lake: Lake) -> None:
    """Lose a lake for good that was copied by our command."""
    if len(world.mounted) < 2:
        return
    copied = {one for store in world.stores for each in store.segments.values() for one in each.backed_up_in}
    if lake.warehouse_at or lake.is_mount_point or not copied - {lake}:
        return
    world.shell(f"rm -rf {lake.path}")
    world.lakes.remove(lake)
    world.burned(lake)
    world.backups = [one for one in world.backups if one.lake is not lake]


def move(world: World, lake: Lake) -> None:
    if lake.is_mount_point:
        return
    name = world.new_name("lakes")
    world.shell(f"mv {lake.path} {name}")
    lake.path = lake.home = name


def swap(world: World, lake: Lake, other: Lake) -> None:
    """Exchange the directories of two lakes, as when a backup is put in place of what it is of."""
    if lake is other or any(one.warehouse_at or one.is_mount_point for one in (lake, other)):
        return
    world.shell(f"mv {lake.path} away/swap; mv {other.path} {lake.path}; mv away/swap {other.path}")
    lake.path, other.path = other.path, lake.path
    lake.home, other.home = other.home, lake.home


def unmount(world: World, lake: Lake) -> None:
    """Leave an empty mount point where the lake was."""
    if lake.is_mount_point:
        return
    aside = world.new_name("away")
    world.shell(f"mv {lake.path} {aside}; mkdir {lake.path}  # what an unmounted disk leaves")
    lake.path = aside
    world.lakes.append(Lake(lake.home, lake.home, is_mount_point=True))


def mount_one(world: World) -> None:
    """Bring back the lake that is away for longest."""
    away = [one for one in world.lakes if one.path != one.home]
    if away:
        mount(world, away[0])


def mount(world: World, lake: Lake) -> None:
    """Bring a lake back; what was made in its mount point meanwhile is kept aside."""
    if lake.path == lake.home:
        return
    below = next((one for one in world.lakes if one.path == lake.home), None)
    if below is not None and any(world.path(lake.home).iterdir()):
        below.path = below.home = world.new_name("away")
        below.is_mount_point = False
        world.shell(f"mv {lake.home} {below.path}")
    elif below is not None:
        world.lakes.remove(below)
        world.shell(f"rmdir {lake.home}")
    world.shell(f"mv {lake.path} {lake.home}")
    lake.path = lake.home


TO_DIRECTORIES: dict[str, Callable[..., object]] = {
    "new lake": lambda world, lake, other, kill: new_lake(world),
    "new lake in place": lambda world, lake, other, kill: make_lake_in_place(world, lake, kill),
    "share": lambda world, lake, other, kill: share_warehouse(world, lake),
    "cp -a": lambda world, lake, other, kill: copy_plainly(world, lake),
    "copy": lambda world, lake, other, kill: copy_by_command(world, lake, kill),
    "copy again": lambda world, lake, other, kill: copy_again(world, lake, other, kill),
    "burn": lambda world, lake, other, kill: burn(world, lake),
    "move": lambda world, lake, other, kill: move(world, lake),
    "swap": lambda world, lake, other, kill: swap(world, lake, other),
    "unmount": lambda world, lake, other, kill: unmount(world, lake),
    "mount": lambda world, lake, other, kill: mount_one(world),
}
"""What happens to lakes as directories."""
