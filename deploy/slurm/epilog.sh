#!/bin/sh
# Slurm's Epilog: the job's GPUs are given back and proven clean, or the node is drained.
# shellcheck source=deploy/slurm/autoclave.sh
. "${0%/*}/autoclave.sh"

if [ -n "$JOB" ] && demand_job && [ -e "$STATE/$JOB" ]; then
  GPUS=$(cat "$STATE/$JOB") || fail 1 "cannot read what job $JOB had"
  # shellcheck disable=SC2086 # one word a GPU
  set -- $GPUS
  ask release "$@" || fail $? "GPUs of job $JOB cannot be taken back: $(meaning $?)"
  rm -f "$STATE/$JOB"
else
  # Its prolog took none. What is another job's is refused by the scrub, and stays untouched.
  GPUS=$(job_gpus) || fail 2 "cannot tell which GPUs job $JOB had"
  [ -n "$GPUS" ] || exit 0
  # shellcheck disable=SC2086 # one word a GPU
  set -- $GPUS
fi

ask scrub "$@" || fail $? "GPUs of job $JOB are $(meaning $?)"
