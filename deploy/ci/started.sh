#!/bin/sh
# Before a job: GitHub's ACTIONS_RUNNER_HOOK_JOB_STARTED, or Buildkite's hook `environment`, which is sourced.
# shellcheck disable=SC2086 # one word for each GPU
sudo -n /etc/autoclave/gpu-job.sh begin "$(id -un)" ${AUTOCLAVE_GPUS:-}
