"""OpenTelemetry's side: the only room that imports OpenTelemetry.

`dask_otel._otel.sdk` is for the scheduler: the SDK, its exporters, resource and sampler.
`dask_otel._otel.api` is for clients and workers: only the API.
"""
