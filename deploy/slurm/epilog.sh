#!/bin/sh
# Slurm's Epilog: releases the job's GPUs and waits until they are proven clean, or drains the node.
# shellcheck source=deploy/slurm/autoclave.sh
. "${0%/*}/autoclave.sh"

if [ -n "$JOB" ] && demand_job && [ -e "$STATE/$JOB" ]; then
  GPUS=$(cat "$STATE/$JOB") || fail 1 "cannot read what job $JOB had"
  # shellcheck disable=SC2086 # one word for each GPU
  set -- $GPUS
  ask release "$@" || fail $? "GPUs of job $JOB cannot be taken back: $(meaning $?)"
  rm -f "$STATE/$JOB"
else
  # The prolog acquired no GPU. The scrub refuses a GPU of another job, and does not touch it.
  GPUS=$(job_gpus) || fail 2 "cannot tell which GPUs job $JOB had"
  [ -n "$GPUS" ] || exit 0
  # shellcheck disable=SC2086 # one word for each GPU
  set -- $GPUS
fi

ask scrub "$@" || fail $? "GPUs of job $JOB are $(meaning $?)"
