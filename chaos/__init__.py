"""Faults on purpose: what was promised for each, and what a real cluster did.

``make chaos`` runs the scenarios that have no result for the code at hand, with real ``dask
scheduler`` and ``dask worker`` processes, real exporters and a real receiver behind a faulty
network, and writes ``docs/reliability.md``
and ``docs/reliability-evidence.md``.
"""
