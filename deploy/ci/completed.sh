#!/bin/sh
# After a job: GitHub's ACTIONS_RUNNER_HOOK_JOB_COMPLETED, or Buildkite's hook `pre-exit`, which is sourced.
sudo -n /etc/autoclave/gpu-job.sh end "$(id -un)"
