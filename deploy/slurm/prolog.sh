#!/bin/sh
# Slurm's Prolog: the job gets its GPUs proven clean, or does not start. Exit code 0 is the only yes.
# shellcheck source=deploy/slurm/autoclave.sh
. "${0%/*}/autoclave.sh"

GPUS=$(job_gpus) || fail 2 "cannot tell which GPUs job $JOB has"
[ -n "$GPUS" ] || exit 0
demand_job
[ -z "${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-}${SLURM_SHARDS_ON_NODE:-}" ] ||
  fail 2 "job $JOB shares a GPU, and what is shared cannot be proven clean"

# shellcheck disable=SC2086 # one word a GPU
set -- $GPUS
# A GPU that needs longer than the policy's budget is waited for by the scrub. One that is somebody's is refused by both.
ask acquire "$@"
code=$?
if [ "$code" -eq 1 ]; then
  ask scrub "$@" && ask acquire "$@"
  code=$?
fi
[ "$code" -eq 0 ] || fail "$code" "GPUs of job $JOB are $(meaning "$code")"

# The epilog gives back what stands here and nothing else: a GPU that was refused just now is another job's.
{ mkdir -p "$STATE" && printf '%s\n' "$GPUS" >"$STATE/$JOB"; } || fail 1 "cannot note what job $JOB has"
