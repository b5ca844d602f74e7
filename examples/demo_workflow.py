"""The workflow of ``dask-otel demo``: a small but real one, with dataframes and arrays.

An online shop has a table of orders (Parquet files) and a matrix of what each customer
looked at (NumPy files). The workflow loads both, brings each customer's orders together
with a peer-to-peer shuffle, and fits by gradient descent how much a customer will spend.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, futures_of, span, wait

ROOT = "Alice's workflow"

#: Called with a text at the beginning of each step; used as a context manager.
Step: TypeAlias = Callable[[str], Any]


class BadData(Exception):
    """A table holds something that can't be; raised inside a task."""


@dataclass(frozen=True)
class Size:
    """How much data the workflow has."""

    files: int
    orders_per_file: int
    customers: int
    features: int
    iterations: int


FULL = Size(files=24, orders_per_file=120_000, customers=240_000, features=48, iterations=4)
QUICK = Size(files=6, orders_per_file=20_000, customers=24_000, features=16, iterations=2)


def generate(directory: Path, size: Size, *, broken: bool = False) -> int:
    """Write the shop's data and return its bytes.

    Parameters
    ----------
    directory
        Gets ``orders/*.parquet`` and ``visits/`` (a NumPy stack).
    broken
        Put an order with a negative price into one file.
    """
    random = np.random.default_rng(2023)
    orders = directory / "orders"
    orders.mkdir(parents=True)
    for number in range(size.files):
        rows = size.orders_per_file
        table = pd.DataFrame(
            {
                "order": np.arange(rows) + number * rows,
                "customer": random.integers(0, size.customers, rows),
                "price": random.gamma(2.0, 20.0, rows).round(2),
                "quantity": random.integers(1, 6, rows),
            }
        )
        if broken and number == size.files // 2:
            table.loc[rows // 3, "price"] = -1.0
        table.to_parquet(orders / f"{number:03}.parquet")
    _generate_visits(directory / "visits", random, size)
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _generate_visits(directory: Path, random: np.random.Generator, size: Size) -> None:
    shape = (size.customers, size.features)
    visits = da.from_array(
        random.poisson(3.0, shape).astype("float64"), chunks=(size.customers // 8, -1)
    )
    # In this process: what the demo shows is the workflow, not how its data came to be.
    with dask.config.set(scheduler="synchronous"):
        da.to_npy_stack(str(directory), visits, axis=0)


def check_orders(orders: pd.DataFrame) -> pd.DataFrame:
    """Return the orders of one partition if each price is one.

    Raises
    ------
    BadData
        With the number of the first order whose price is negative.
    """
    bad = orders[orders["price"] < 0]
    if len(bad):
        order = bad.iloc[0]
        raise BadData(f"order {order['order']:.0f} has a price of {order['price']}")
    return orders


def spending(orders: pd.DataFrame) -> pd.Series:
    """Return what each customer of one partition has spent."""
    return (orders["price"] * orders["quantity"]).groupby(orders["customer"]).sum()


def run(client: Client, directory: Path, size: Size, step: Step) -> float:
    """Run the workflow under the root span `ROOT` and return the model's error.

    Dask tags a dataframe's tasks with the span that is open at ``persist()`` or
    ``compute()``, an array's tasks with the span in which each operation was written
    down. Hence the ``persist()`` inside each span, and ``optimization.fuse.active: False``,
    without which arrays lose their spans.
    """
    with warnings.catch_warnings():
        # True for other annotations: the span reaches a dataframe's tasks all the same.
        warnings.filterwarnings("ignore", message="Dask annotations .* detected")
        return _run(client, directory, size, step)


def _run(client: Client, directory: Path, size: Size, step: Step) -> float:
    with step("Loading the data"), span("data load"):
        orders = dd.read_parquet(str(directory / "orders")).persist()
        visits = da.from_npy_stack(str(directory / "visits"), mmap_mode=None).persist()
        finish(orders)
        finish(visits)
    with step("Preprocessing"), span("preprocessing"):
        with span("shuffle"):
            checked = orders.map_partitions(check_orders, meta=orders._meta)  # noqa: SLF001
            by_customer = checked.shuffle("customer", shuffle_method="p2p").persist()
            finish(by_customer)
        with span("features"):
            spent = client.compute(by_customer.map_partitions(spending, meta=("spent", "f8")))
            scaled = (visits - visits.mean(axis=0)) / visits.std(axis=0)
            scaled = scaled.persist()
            target = spent.result().reindex(range(size.customers), fill_value=0.0)
    with step("Training the model"), span("model training"):
        return train(scaled, target.to_numpy(), size)


def finish(collection: Any) -> Any:
    """Wait for a persisted collection; return its value where it has one chunk only.

    Raises
    ------
    Exception
        That of the first task that failed.
    """
    futures = futures_of(collection)
    wait(futures)
    for future in futures:
        if future.status == "error":
            future.result()
    return futures[0].result() if len(futures) == 1 else None


def train(features: da.Array, target: np.ndarray, size: Size) -> float:
    """Fit a linear model by gradient descent and return its root mean square error."""
    wanted = da.from_array(target - target.mean(), chunks=features.chunks[0]).persist()
    weights = np.zeros(size.features)
    error = float(target.std())
    for number in range(size.iterations):
        with span(f"iteration {number + 1}"):
            residual = features @ weights - wanted
            gradient = features.T @ residual / size.customers
            # Not compute(): its last task is called the same everywhere, so that Dask books
            # it in the first span that had one (see "task group" in Dask's documentation).
            gradient, square = dask.persist(gradient, (residual**2).mean())
            weights = weights - 0.5 * finish(gradient)
            error = float(np.sqrt(finish(square)))
    return error
