#!/bin/sh
# After a job: GitHub's ACTIONS_RUNNER_HOOK_JOB_COMPLETED, or Buildkite's hook `pre-exit`, which is sourced.
(
  export PATH=/usr/local/bin:/usr/bin:/bin # a job can leave another one to its runner
  sudo -n /etc/autoclave/gpu-job.sh end "$(id -un)"
)
