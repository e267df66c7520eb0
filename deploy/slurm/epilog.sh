#!/bin/sh
# Slurm's Epilog: releases the job's GPUs and waits until they are proven clean, or drains the node.
# shellcheck source=deploy/slurm/autoclave.sh
. "${0%/*}/autoclave.sh"

if [ -n "$JOB" ] && demand_job && [ -e "$STATE/$JOB" ]; then
  GPUS=$(cat "$STATE/$JOB") || fail 1 "cannot read what job $JOB had"
else # the prolog acquired no GPU, or was killed before it recorded them
  GPUS=$(job_gpus) || fail 2 "cannot tell which GPUs job $JOB had"
  [ -n "$GPUS" ] || exit 0
  demand_job
fi

# shellcheck disable=SC2086 # one word for each GPU
set -- $GPUS
# Both commands refuse a GPU of another job, and do not touch it.
ask release --owner "$JOB" "$@" || fail_for $? "$@"
rm -f "$STATE/$JOB"
ask scrub "$@" || fail_for $? "$@"
