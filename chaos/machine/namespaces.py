"""Partitions between a worker and the scheduler, by network namespaces of the kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from tests.cluster.processes import Process

from chaos.processes import cut_off
from chaos.scenario import HTTP, CannotRun, scenario
from chaos.world import PATIENCE, RECONCILED, World


def _ip(*command: str) -> None:
    done = subprocess.run(["ip", *command], capture_output=True, check=False, text=True)
    if done.returncode:
        raise CannotRun(f"`ip {' '.join(command[:2])}` is refused: {done.stderr.strip()[:100]}")


class Namespace:
    """A machine of its own, as far as the network goes: one cable leads there."""

    def __init__(self) -> None:
        pid = os.getpid()
        self.name = f"chaos{pid % 100_000}"
        self.cable = f"{self.name}c0"
        subnet = f"10.{200 + pid % 50}.{pid // 50 % 250}"
        #: The address of this side, and that of the other.
        self.near, self.far = f"{subnet}.1", f"{subnet}.2"

    def plug(self, there: bool) -> None:
        """Plug the cable in, or pull it."""
        _ip("link", "set", self.cable, "up" if there else "down")


@contextmanager
def _namespace() -> Iterator[Namespace]:
    if shutil.which("ip") is None:
        raise CannotRun("network namespaces need `ip`")
    made = Namespace()
    other = f"{made.name}c1"
    inside = ("-n", made.name)
    with ExitStack() as stack:
        for leftover in (["netns", "del", made.name], ["link", "del", made.cable]):
            stack.callback(subprocess.run, ["ip", *leftover], capture_output=True, check=False)
        for command in (
            ("netns", "add", made.name),
            ("link", "add", made.cable, "type", "veth", "peer", "name", other),
            ("link", "set", other, "netns", made.name),
            ("address", "add", f"{made.near}/30", "dev", made.cable),
            ("link", "set", made.cable, "up"),
            (*inside, "address", "add", f"{made.far}/30", "dev", other),
            (*inside, "link", "set", other, "up"),
            (*inside, "link", "set", "lo", "up"),
        ):
            _ip(*command)
        yield made


def _pulled(world: World, seconds: float, left: int) -> str:
    with _namespace() as there, ExitStack() as stack:
        world.start(workers=1, arguments=("--host", there.near))
        worker = Process(
            world.folder / "worker-far.log", "worker", world.scheduler.address,
            "--host", there.far, "--name", "far", "--nthreads", "2", "--no-nanny",
            "--no-dashboard", "--memory-limit", "0", "--local-directory", str(world.folder),
            env={}, within=("ip", "netns", "exec", there.name),
        )  # fmt: skip
        stack.callback(worker.kill)
        world.client.wait_for_workers(2, timeout=PATIENCE)
        return cut_off(world, there.plug, seconds, left, exactly=False)


for _name, _words, _seconds, _left in (
    ("cable", "The cable between a worker (in a network namespace of its own) and the scheduler is "
     "pulled for 8 s", 8.0, 2),
    ("cable-long", "The same for 45 s, longer than Dask keeps a connection without an answer",
     45.0, 1),
):  # fmt: skip
    scenario(
        _name,
        section="Processes",
        fault=_words,
        promise=RECONCILED,
        protocols=(HTTP,),
    )(partial(_pulled, seconds=_seconds, left=_left))
