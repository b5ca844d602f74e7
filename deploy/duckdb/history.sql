-- SQL over the files that the bridge writes (otel.files.path), with DuckDB 1.3 or later:
--   duckdb -init history.sql
--   SELECT * FROM dask_runs('telemetry/*-traces.jsonl*');
-- Each macro takes a path, a pattern, or a list of them; s3://… needs DuckDB's extension httpfs.
-- Values that were not exported are NULL. Lines that are no JSON are left out.

-- Every span once, with its attributes as text.
CREATE OR REPLACE MACRO dask_spans(files) AS TABLE
WITH requests AS (
    SELECT unnest(resourceSpans) AS one
    FROM read_json(
        files,
        format = 'newline_delimited',
        ignore_errors = true,
        maximum_object_size = 134217728,
        columns = {
            resourceSpans: 'STRUCT(
                resource STRUCT(attributes STRUCT(
                    key VARCHAR, value STRUCT(stringValue VARCHAR)
                )[]),
                scopeSpans STRUCT(scope STRUCT(version VARCHAR), spans STRUCT(
                    traceId VARCHAR, spanId VARCHAR, parentSpanId VARCHAR, name VARCHAR,
                    startTimeUnixNano VARCHAR, endTimeUnixNano VARCHAR,
                    attributes STRUCT(key VARCHAR, value STRUCT(
                        stringValue VARCHAR, intValue VARCHAR, doubleValue DOUBLE, boolValue BOOLEAN
                    ))[]
                )[])[]
            )[]'
        }
    )
), scopes AS (
    SELECT
        map_from_entries([(a.key, a.value.stringValue) FOR a IN one.resource.attributes])
            AS resource,
        unnest(one.scopeSpans) AS scope
    FROM requests
), spans AS (
    SELECT resource, scope.scope.version AS dask_otel, unnest(scope.spans) AS span FROM scopes
)
SELECT DISTINCT ON (span.traceId, span.spanId)
    span.traceId AS trace_id,
    span.spanId AS span_id,
    span.parentSpanId AS parent_id,
    span.name AS name,
    make_timestamp((span.startTimeUnixNano::HUGEINT // 1000)::BIGINT) AS start,
    (span.endTimeUnixNano::HUGEINT - span.startTimeUnixNano::HUGEINT) / 1e9 AS seconds,
    map_from_entries([
        (a.key, coalesce(
            a.value.stringValue, a.value.intValue, a.value.doubleValue::VARCHAR,
            a.value.boolValue::VARCHAR
        )) FOR a IN span.attributes
    ]) AS attributes,
    resource['dask.cluster.name'] AS cluster,
    resource['service.version'] AS distributed,
    dask_otel
FROM spans;

-- One row for each root span that ended. Thread-seconds are those of all spans below it, too.
CREATE OR REPLACE MACRO dask_runs(files) AS TABLE
WITH spans AS (
    SELECT
        *,
        attributes['dask.span.root.id'] AS root_id,
        attributes['dask.span.id'] = attributes['dask.span.root.id'] AS is_root
    FROM dask_spans(files)
    WHERE attributes['dask.span.type'] = 'span'
), used AS (
    SELECT
        trace_id,
        root_id,
        sum(attributes['dask.span.capacity.time']::DOUBLE) AS thread_seconds,
        sum(attributes['dask.span.idle.time']::DOUBLE) AS idle_seconds
    FROM spans
    GROUP BY ALL
)
SELECT
    start,
    attributes['dask.span.name'] AS name,
    attributes['dask.span.result'] AS result,
    seconds,
    attributes['dask.task.count']::BIGINT AS tasks,
    attributes['dask.task.erred.count']::BIGINT AS failed,
    attributes['dask.span.output.size']::BIGINT AS output_bytes,
    -- Of a root that was continued, all generations together: on the first one's row.
    CASE WHEN coalesce(attributes['dask.span.generation'], '1') = '1' THEN thread_seconds END AS thread_seconds,
    CASE WHEN coalesce(attributes['dask.span.generation'], '1') = '1' THEN idle_seconds END AS idle_seconds,
    attributes['dask.worker.count']::BIGINT AS workers,
    attributes['dask.thread.count']::BIGINT AS threads,
    cluster,
    distributed,
    dask_otel,
    trace_id,
    root_id
FROM spans JOIN used USING (trace_id, root_id)
WHERE is_root
ORDER BY start;

-- The tasks of each function of each run, and the seconds in which they computed.
CREATE OR REPLACE MACRO dask_functions(files) AS TABLE
WITH groups AS (
    SELECT
        trace_id,
        attributes['dask.span.root.id'] AS root_id,
        attributes['dask.span.root.name'] AS root_name,
        attributes['dask.task.prefix'] AS function,
        -- When the first group of the run began.
        min(start) OVER (PARTITION BY trace_id, attributes['dask.span.root.id']) AS start,
        attributes
    FROM dask_spans(files)
    WHERE attributes['dask.span.type'] = 'group'
)
SELECT
    trace_id,
    root_id,
    root_name,
    function,
    start,
    sum(attributes['dask.task.count']::BIGINT) AS tasks,
    sum(attributes['dask.task_group.duration.compute']::DOUBLE) AS compute_seconds,
    sum(attributes['dask.task_group.duration.transfer']::DOUBLE) AS transfer_seconds,
    sum(attributes['dask.span.output.size']::BIGINT) AS output_bytes
FROM groups
GROUP BY trace_id, root_id, root_name, function, start
ORDER BY start;
