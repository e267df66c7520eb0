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

worst=0
failed=
note() { # CODE GPU...
  # 4: a GPU belongs to another job, to which only a clean GPU is given. The commands leave it alone; it is not a fault of the node.
  if [ "$1" -eq 0 ] || [ "$1" -eq 4 ]; then return; fi
  [ "$1" -le "$worst" ] || worst=$1
  shift
  failed="$failed $*"
}

released=
code=0
for gpu in $GPUS; do # one by one: a GPU that cannot be given back must not keep the job's others
  # A service that does not answer is not asked again for each GPU.
  if [ "$code" -ne 3 ]; then
    ask release --owner "$JOB" "$gpu"
    code=$?
  fi
  note "$code" "$gpu"
  [ "$code" -ne 0 ] || released="$released $gpu"
done

# An operator may run the epilog again: it then takes the GPUs that the job still has.
# shellcheck disable=SC2086 # one word for each GPU
if [ -z "$failed" ]; then rm -f "$STATE/$JOB"; elif [ -e "$STATE/$JOB" ]; then printf '%s\n' $failed >"$STATE/$JOB"; fi

# shellcheck disable=SC2086 # one word for each GPU
if [ -n "$released" ] && [ "$code" -ne 3 ]; then
  ask scrub $released
  note $? $released
fi
# shellcheck disable=SC2086 # one word for each GPU
[ -z "$failed" ] || fail_for "$worst" $failed
