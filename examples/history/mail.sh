#!/bin/sh
# Prints what changed if the last run of a workflow is a regression, or why that is not known, else
# nothing: cron mails what a job prints. In a crontab:
#   MAILTO=team@example.org
#   0 7 * * * /opt/mail.sh /data/dask-telemetry nightly
said=$(dask-otel history "$1" --check "$2" 2>&1) && exit 0
printf '%s\n' "$said" | grep -F "$2: " || printf '%s\n' "$said"
