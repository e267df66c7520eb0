#!/bin/sh
# Slurm's Prolog: the job starts only if its GPUs are proven clean. Only exit code 0 means success.
# shellcheck source=deploy/slurm/autoclave.sh
. "${0%/*}/autoclave.sh"

GPUS=$(job_gpus) || fail 2 "cannot tell which GPUs job $JOB has"
[ -n "$GPUS" ] || exit 0
demand_job
[ -z "${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-}${SLURM_SHARDS_ON_NODE:-}" ] ||
  fail 2 "job $JOB shares a GPU, and what is shared cannot be proven clean"

# shellcheck disable=SC2086 # one word for each GPU
set -- $GPUS
# If a GPU needs longer than the policy's budget, the scrub waits for it. A GPU of another job is refused by both commands.
ask acquire --owner "$JOB" "$@"
code=$?
if [ "$code" -eq 1 ]; then
  ask scrub "$@" && ask acquire --owner "$JOB" "$@"
  code=$?
fi
[ "$code" -eq 0 ] || fail_for "$code" "$@"

# For the epilog: by then, Slurm's numbers may mean other GPUs.
{ mkdir -p "$STATE" && printf '%s\n' "$GPUS" >"$STATE/$JOB"; } || fail 1 "cannot note what job $JOB has"
