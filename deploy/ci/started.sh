#!/bin/sh
# Before a job: GitHub's ACTIONS_RUNNER_HOOK_JOB_STARTED, or Buildkite's hook `environment`, which is sourced.
# shellcheck disable=SC2086 # one word for each GPU
(
  export PATH=/usr/local/bin:/usr/bin:/bin # a job can leave another one to its runner
  set -- /etc/autoclave/gpu-job.sh begin "$(id -un)" ${AUTOCLAVE_GPUS:-}
  command -v sudo >/dev/null || { echo "autoclave: cannot run $1 as root: sudo is not installed" >&2; exit 1; }
  sudo -n "$@" && exit
  code=$?
  sudo -n -l "$@" >/dev/null 2>&1 ||
    echo "autoclave: sudoers does not allow '$*': AUTOCLAVE_GPUS must be the GPUs that sudoers names, in that order" >&2
  exit "$code"
)
