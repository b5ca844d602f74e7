"""Partitions between a worker and the scheduler, by network namespaces of the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.waiting import eventually

from chaos.reconciled import CLOSES, RECONCILED, reconciled
from chaos.scenario import HTTP, CannotRun, scenario
from chaos.world import PATIENCE, World

_SECTION = "Processes"
#: Seconds after which Dask gives up a connection without an answer, and some more.
_LONG = 45.0


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    if done.returncode:
        raise CannotRun(f"`{' '.join(command[:3])}` is refused here: {done.stderr.strip()[:100]}")


class Namespace:
    """A machine of its own, as far as the network goes: one cable leads there.

    Parameters
    ----------
    name
        Of the namespace; at most ten characters.
    subnet
        The first three numbers of an address that nobody else has here.
    """

    def __init__(self, name: str, subnet: str) -> None:
        self.name = name
        #: The address of this side, and that of the other.
        self.near, self.far = f"{subnet}.1", f"{subnet}.2"
        self._cable = f"{name}c0"

    def make(self) -> None:
        """Make it, and lay the cable."""
        _run("ip", "netns", "add", self.name)
        _run("ip", "link", "add", self._cable, "type", "veth", "peer", "name", f"{self.name}c1")
        _run("ip", "link", "set", f"{self.name}c1", "netns", self.name)
        _run("ip", "address", "add", f"{self.near}/30", "dev", self._cable)
        self.plug(True)
        inside = ("ip", "-n", self.name)
        _run(*inside, "address", "add", f"{self.far}/30", "dev", f"{self.name}c1")
        _run(*inside, "link", "set", f"{self.name}c1", "up")
        _run(*inside, "link", "set", "lo", "up")

    def plug(self, there: bool) -> None:
        """Plug the cable in, or pull it."""
        _run("ip", "link", "set", self._cable, "up" if there else "down")

    def remove(self) -> None:
        """Remove what is there of it."""
        for command in (["link", "del", self._cable], ["netns", "del", self.name]):
            subprocess.run(["ip", *command], capture_output=True, check=False)


@contextmanager
def _namespace() -> Iterator[Namespace]:
    pid = os.getpid()
    made = Namespace(f"chaos{pid % 100_000}", f"10.{200 + pid % 50}.{pid // 50 % 250}")
    try:
        made.make()
        yield made
    except FileNotFoundError as error:
        raise CannotRun("network namespaces need `ip`") from error
    finally:
        with suppress(FileNotFoundError):
            made.remove()


@contextmanager
def _worker(world: World, there: Namespace) -> Iterator[None]:
    """Run a worker in the namespace."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "DASK_"))}
    command = ["ip", "netns", "exec", there.name, sys.executable, "-m", "dask", "worker"]
    command += [world.scheduler.address, "--host", there.far, "--name", "far", "--nthreads", "2"]
    command += ["--no-nanny", "--no-dashboard", "--memory-limit", "0"]
    command += ["--local-directory", str(world.folder)]
    log: Path = world.folder / "worker-far.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=inherited)
    try:
        yield
    finally:
        process.kill()
        process.wait(10)


def _pulled(world: World, seconds: float, left: int) -> str:
    world.gate.mode = "pass"
    with ExitStack() as stack:
        there = stack.enter_context(_namespace())
        world.start(workers=1, arguments=("--host", there.near))
        stack.enter_context(_worker(world, there))
        world.client.wait_for_workers(2, timeout=PATIENCE)
        world.work(2)
        _, futures = world.submit(60, seconds=0.1)
        world.wait_for_some(futures)
        there.plug(False)
        time.sleep(seconds)
        there.plug(True)
        world.client.gather(futures)
        world.work(2)
        eventually(lambda: len(world.client.nthreads()) >= left, PATIENCE, "the workers are back")
        said = reconciled(world)
        count = len(world.client.nthreads())
        return f"{said}; {count} of 2 workers are left; {CLOSES}"


@scenario(
    "cable",
    section=_SECTION,
    fault="The cable between a worker (in a network namespace of its own) and the scheduler is "
    "pulled for 8 s",
    promise=RECONCILED,
    protocols=(HTTP,),
)
def _cable(world: World) -> str:
    return _pulled(world, 8.0, left=2)


@scenario(
    "cable-long",
    section=_SECTION,
    fault="The same for 45 s, longer than Dask keeps a connection without an answer",
    promise=RECONCILED,
    protocols=(HTTP,),
)
def _cable_long(world: World) -> str:
    return _pulled(world, _LONG, left=1)
