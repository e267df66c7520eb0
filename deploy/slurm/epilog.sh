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

# 4: a GPU belongs to another job, to which only a clean GPU is given. The commands leave it alone; it is no fault of the node.
fail_unless_left_alone() { # CODE GPU...
  [ "$1" -eq 0 ] || [ "$1" -eq 4 ] || fail_for "$@"
}

# shellcheck disable=SC2086 # one word for each GPU
set -- $GPUS
for gpu in "$@"; do # one by one: a GPU of another job must not keep the others
  ask release --owner "$JOB" "$gpu"
  fail_unless_left_alone $? "$gpu"
done
rm -f "$STATE/$JOB"
ask scrub "$@"
fail_unless_left_alone $? "$@"
