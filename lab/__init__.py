"""Random programs for `dask_otel.lab`, and what really happened in them.

========== ==========================================================================
`truth`     from the threads' real runs and Dask's own transitions
`paths`     what a span waited for, from the finished history
`occupancy` which threads were free, at any time
`outcomes`  what became of tasks, by span
`programs`  random programs by seed, and the smallest one that fails
========== ==========================================================================

`dask_otel.lab.install` must be called before `distributed` is imported.
"""
