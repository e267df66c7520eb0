#!/bin/bash
# Checks inside the machine, as root: checks.sh NAME. A check passes if it ends with 0. `make machine` names the order.
set -euo pipefail
export PATH=/opt/autoclave/bin:$PATH
UNIT=autoclave-scrubber
GPUS=/var/lib/autoclave/simulated # GPU N is gpuN/memory
HOOKS=/etc/autoclave

started() { systemctl show -P ExecMainStartTimestampMonotonic $UNIT; }
refused() { if "$@"; then echo "not refused: $*" >&2; return 1; fi; }
says() { echo "$2" | grep -- "$1" > /dev/null || { echo "expected '$1' in: $2" >&2; return 1; }; }
BEGAN=$(date +%s)

until_true() { # SECONDS COMMAND...
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt $end ] || { echo "not in time: $*" >&2; return 1; }
    sleep 1
  done
}
is_in() { [ "$(autoclave status "$1" | awk 'NR == 2 { print $3 }')" = "$2" ]; }
explains() { autoclave explain 0 | grep -- "$1" > /dev/null; }
in_journal() { journalctl -q -o cat -u $UNIT --since "@$BEGAN" | grep -- "$1" > /dev/null; }
again() { systemctl is-active -q $UNIT && [ "$(started)" != "$1" ]; }

installed() {
  autoclave wait 0 1 --timeout 5m
  autoclave doctor --without-kubernetes
}

# The lower, the less it may do. What it must do (SYS_ADMIN, SYS_PTRACE, the devices) costs most of it.
security() { systemd-analyze security --no-pager --threshold=51 $UNIT | tail -1; }

stops_and_starts() {
  systemctl stop $UNIT
  [ "$(systemctl show -P Result $UNIT)" = success ]
  in_journal '"stopped"'
  refused autoclave --service-wait 0s status
  autoclave ledger verify
  systemctl start $UNIT
  autoclave wait 0 1 --timeout 5m
}

killed_in_mid_scrub() {
  local before rows
  before=$(started)
  rows=$(autoclave history 0 | tail -1 | awk '{ print $1 }')
  autoclave simulate stall-clears 0
  autoclave scrub 0 > /dev/null 2>&1 &
  until_true 60 is_in 0 scrubbing
  systemctl kill --kill-whom=main -s KILL $UNIT
  until_true 120 again "$before"
  refused is_in 0 clean
  refused autoclave acquire 0 --owner early # within the time that an Allocate may take: it is not proven
  autoclave simulate heal 0
  autoclave scrub 0
  autoclave history 0 | awk -v rows="$rows" '$1 > rows'
  autoclave ledger verify
  wait
}

watchdog() {
  local before
  before=$(started)
  systemctl kill --kill-whom=main -s STOP $UNIT
  until_true 300 again "$before"
  journalctl -q -u $UNIT --since "@$BEGAN" | grep -i watchdog
  autoclave wait 0 1 --timeout 5m
}

wrong_settings() {
  cp $HOOKS/scrubber.env /tmp/kept
  echo AUTOCLAVE_POLICY=/etc/autoclave/none.yaml >> $HOOKS/scrubber.env
  refused systemctl restart $UNIT
  sleep 5 # RestartSec is 2 s
  [ "$(systemctl show -P NRestarts,ExecMainStatus,ActiveState $UNIT | xargs)" = "0 2 failed" ]
  says 'none.yaml:1:1: found no such file' "$(systemctl status --no-pager $UNIT || true)"
  cp /tmp/kept $HOOKS/scrubber.env
  systemctl start $UNIT
}

reload() {
  sed -i 's/name: .*/name: second/' $HOOKS/policy.yaml
  systemctl reload $UNIT
  until_true 60 explains 'policy *second'
  sed -i 's/name: .*/name: [/' $HOOKS/policy.yaml
  systemctl reload $UNIT
  until_true 60 in_journal 'policy not loaded'
  explains 'policy *second'
  sed -i 's/name: .*/name: machine/' $HOOKS/policy.yaml
  systemctl reload $UNIT
  until_true 60 explains 'policy *machine'
}

ci_hooks() {
  install -m 755 -D -t $HOOKS deploy/ci/gpu-job.sh deploy/ci/started.sh deploy/ci/completed.sh
  echo "ordinary ALL=(root) NOPASSWD: $HOOKS/gpu-job.sh begin ordinary 0 1, $HOOKS/gpu-job.sh end ordinary" \
    > /etc/sudoers.d/autoclave-ordinary
  runuser -u ordinary -- env "AUTOCLAVE_GPUS=0 1" $HOOKS/started.sh
  is_in 0 granted
  says ordinary "$(autoclave status 1)"
  runuser -u ordinary -- $HOOKS/completed.sh
  autoclave wait 0 1 --timeout 2m
  refused runuser -u ordinary -- env "AUTOCLAVE_GPUS=1 0" $HOOKS/started.sh # not what sudoers names
  is_in 1 clean
}

# A container of this program has GPU 1: it is known by its control group, its GPU is not taken from it, and is scrubbed
# after it. Simulated GPUs know a container by a variable.
containers() { # PROGRAM
  local program=$1 pid
  [ "$program" = podman ] || systemctl start docker
  mkdir -p /srv/tiny/bin && cp /bin/busybox /srv/tiny/bin && ln -sf busybox /srv/tiny/bin/sh
  tar -C /srv/tiny -c . | "$program" import - tiny > /dev/null
  $HOOKS/gpu-job.sh begin runner 1
  "$program" run -d --network none --name job -e AUTOCLAVE_SIMULATED_CONTAINER=job -v $GPUS/gpu1/memory:/gpu tiny \
    /bin/sh -c 'exec 3<> /gpu; echo secret >&3; exec busybox sleep 1000' > /tmp/container
  pid=$("$program" inspect -f '{{.State.Pid}}' job)
  until_true 30 grep -q secret $GPUS/gpu1/memory
  until_true 30 is_in 1 in_use
  says "$(cut -c 1-12 /tmp/container)" "$(/opt/autoclave/bin/python -c "
from pathlib import Path
from scrubber.node.node_containers import Containers
print(Containers(Path('/proc')).of($pid))")"
  refused $HOOKS/gpu-job.sh end runner
  grep -q secret $GPUS/gpu1/memory
  "$program" kill job > /dev/null
  "$program" rm -f job > /dev/null
  $HOOKS/gpu-job.sh end runner
  autoclave wait 1 --timeout 2m
  refused grep -q secret $GPUS/gpu1/memory
  [ "$program" = podman ] || systemctl stop docker docker.socket containerd
}

# Simulated GPUs with device nodes, by the lines of the page, in a hand-over: the kernel lets in the owner alone.
refuses() {
  local drop=/etc/systemd/system/$UNIT.service.d job=/sys/fs/cgroup/job
  if [ ! -e $drop ]; then
    mkdir $drop
    printf '[Service]\nCapabilityBoundingSet=CAP_MKNOD\n' > $drop/simulated.conf
    echo AUTOCLAVE_CGROUP_ROOT=/sys/fs/cgroup >> $HOOKS/scrubber.env
    sed -i 's/^defaults:/&\n  fence: {mode: refuse}/' $HOOKS/policy.yaml
    systemctl daemon-reload
  fi
  systemctl restart $UNIT
  autoclave wait 0 --timeout 5m
  autoclave doctor --without-kubernetes
  refused head -c 1 $GPUS/gpu0/memory
  mkdir $job
  autoclave acquire 0 --owner job --cgroup $job
  refused head -c 1 $GPUS/gpu0/memory
  bash -c "echo \$\$ > $job/cgroup.procs; head -c 1 $GPUS/gpu0/memory > /dev/null"
  autoclave release --owner job
  rmdir $job
  autoclave wait 0 --timeout 2m
  refused head -c 1 $GPUS/gpu0/memory
}

before_reboot() {
  autoclave acquire 0 1 --owner before-reboot
  autoclave ledger verify
  journalctl -q -o cat -u $UNIT > /srv/checkpoints
  autoclave history 0 | tail -1 > /srv/last-row
}

after_reboot() {
  until_true 300 systemctl is-active -q $UNIT
  autoclave wait 0 1 --timeout 10m
  refused grep -q before-reboot <(autoclave status)
  autoclave history 0 | grep -F -A 20 "$(cat /srv/last-row)" | tail -n +2 | grep 'proven clean' # after the boot
  autoclave ledger verify --checkpoint /srv/checkpoints
  autoclave acquire 0 1 --owner after-reboot
  autoclave release --owner before-reboot # an owner without GPUs
  autoclave release --owner after-reboot
}

cd "$(dirname "$0")/../.."
"$@"
