"""Faults on purpose: the promise for each, and the observation of a real cluster.

``make chaos`` runs the scenarios that have no result for the code at hand, with real ``dask
scheduler`` and ``dask worker`` processes, real exporters and a real receiver behind a faulty
network, and writes ``docs/reliability.md``
and ``docs/reliability-evidence.md``.
"""
