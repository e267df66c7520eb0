#!/bin/bash
# A real Slurm inside the machine, as root: slurm.sh NAME. `make machine ARGS=--slurm` names the order, and judges.
# The files of the simulated GPUs are root's, so the jobs are root's, too.
set -euo pipefail
export PATH=/opt/autoclave/bin:$PATH
UNIT=autoclave-scrubber
ETC=/etc/slurm
JOBS=/srv/jobs # what the jobs say
NODES=/srv/gpus # gpuN, a device node that stands for GPU N: Slurm takes no regular file, and restricts jobs by nodes

until_true() { # for longer than the slow system calls of the machine need
  local end=$((SECONDS + 600))
  until "$@"; do
    [ $SECONDS -lt $end ] || { echo "not in time: $*" >&2; sinfo -R >&2; squeue -l >&2; return 1; }
    sleep 1
  done
}
refused() { if "$@"; then echo "not refused: $*" >&2; return 1; fi; }
no_jobs() { [ -z "$(squeue -h)" ]; }
pending() { squeue -h -j "$1" -o %T | grep PENDING > /dev/null; }
gone() { [ -z "$(squeue -h -j "$1" 2> /dev/null)" ]; }
drained() { sinfo -R -h -o %200E | grep -- "$1" > /dev/null; } # REASON
free() { case $(sinfo -h -o %T) in idle | mixed | allocated) ;; *) return 1 ;; esac; }
ready() { autoclave status | awk 'NR > 1 && $3 != "clean" && $3 != "quarantined" { exit 1 }'; }
resume() { scontrol update nodename=machine state=resume && until_true free; }
said() { grep -q " $1 $2" $JOBS/said; } # JOB RESTARTS WHAT
job() { sbatch --parsable -o "$JOBS/out.%j" --gres=gpu:"$1" "${@:3}" $JOBS/job.sh "$2"; } # GPUS SECONDS OPTION...
begun() { # the same, as soon as it runs
  job "$@" > /tmp/job
  until_true said "$(cat /tmp/job)" "0 begins"
}
over() { # the last job has gone, its GPUs are clean again, and the node was not drained
  until_true gone "$(cat /tmp/job)"
  until_true ready
  free
}

gres() { # PLACES COUNT [SICK]: the GPUs that Slurm may hand out, and the one that it may not
  echo "NodeName=machine AutoDetect=off Name=gpu File=$NODES/gpu[$1]" > $ETC/gres.conf
  [ -z "${3:-}" ] || echo "NodeName=machine AutoDetect=off Name=sick File=$NODES/gpu$3" >> $ETC/gres.conf
  sed -i "s/ Gres=[^ ]*/ Gres=gpu:$2${3:+,sick:1}/" $ETC/slurm.conf
  sed -i "s/^GRES=.*/GRES=${3:+$1}/" $ETC/autoclave.sh
}
restart() { # so that Slurm counts the GPUs anew
  systemctl restart slurmctld slurmd
  until_true registered
}
registered() { scontrol show node machine | grep ' State=' | grep -v UNKNOWN > /dev/null; }

prepare() {
  mkdir -p $JOBS $NODES /var/lib/slurm/slurmd
  install -d -o slurm /var/lib/slurm/slurmctld
  for gpu in 0 1 2 3; do mknod $NODES/gpu$gpu c 240 $gpu; done # no driver has this number
  install -m 755 deploy/slurm/autoclave.sh $ETC/autoclave.sh
  ln -sf autoclave.sh $ETC/autoclave-health.sh
  # Longer than on the page: system calls of the machine are slow.
  sed -i "s/^LIMIT=.*/LIMIT=240/; s/SERVICE_WAIT:-1500ms/SERVICE_WAIT:-20s/" $ETC/autoclave.sh
  cat > $ETC/slurm.conf << 'END'
ClusterName=machine
SlurmctldHost=machine
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu,sick
SlurmdParameters=config_overrides
Prolog=/etc/slurm/autoclave.sh
Epilog=/etc/slurm/autoclave.sh
PrologFlags=Alloc
PrologEpilogTimeout=300
HealthCheckProgram=/etc/slurm/autoclave-health.sh
HealthCheckInterval=3600
KillWait=10
BatchStartTimeout=100
MessageTimeout=100
SlurmdTimeout=900
ReturnToService=2
NodeName=machine CPUs=2 RealMemory=1000 Gres=gpu:4
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
  printf 'CgroupPlugin=cgroup/v2\nConstrainDevices=yes\n' > $ETC/cgroup.conf
  gres 0-3 4
  cat > $JOBS/job.sh << 'END'
#!/bin/bash
# What a job sees: its GPUs hold only zeros when it begins, and its own bytes until it ends.
say() { echo "$(date +%s.%N) $SLURM_JOB_ID ${SLURM_RESTART_COUNT:-0} $*" >> /srv/jobs/said; }
gpus=$(/etc/slurm/autoclave.sh gpus) || exit 1
gpus=$(echo $gpus)
say begins $gpus
memory() { echo "/var/lib/autoclave/simulated/gpu$1/memory"; }
for gpu in 0 1 2 3; do
  expected="not permitted"
  case " $gpus " in *" $gpu "*) expected="No such device" ;; esac
  case $(cat /srv/gpus/gpu$gpu 2>&1) in *"$expected"*) ;; *) say "is not restricted to its GPUs" ;; esac
done
for gpu in $gpus; do
  [ "$(tr -d '\0' < "$(memory $gpu)" | wc -c)" = 0 ] || say "finds bytes on $gpu"
  exec {file}<> "$(memory $gpu)"
  echo "bytes of $SLURM_JOB_ID" >&$file
done
# It leaves the group of the job, so that Slurm does not end it.
[ -z "${LEAVES:-}" ] || { setsid sh -c 'echo $$ > /sys/fs/cgroup/cgroup.procs; exec sleep 5000' & sleep 1; }
[ "$SLURM_RESTART_COUNT" ] || sleep "$1"
for gpu in $gpus; do
  grep -q "bytes of $SLURM_JOB_ID" "$(memory $gpu)" || say "has lost its bytes on $gpu"
done
say ends
END
  chown munge: /etc/munge/munge.key # the image was made where there is one user
  # Slurm finds no name where the only address is that of the loopback.
  mkdir -p /etc/systemd/system/munge.service.d
  printf '[Service]\nExecStartPre=+ip address replace 192.0.2.1/32 dev lo\n' > /etc/systemd/system/munge.service.d/address.conf
  systemctl daemon-reload
  systemctl enable -q munge slurmctld slurmd
  systemctl start munge slurmctld slurmd
  until_true free
  autoclave wait 0 1 2 3 --timeout 10m
}

many() { # N: two at a time, each on one or two GPUs
  for ((n = 1; n <= $1; n++)); do job $((n % 3 ? 1 : 2)) 2 > /tmp/job; done
  until_true within_reach
  over
  [ "$(grep -c ends $JOBS/said)" = "$1" ]
}
# So that the time to wait begins again with each job.
within_reach() { no_jobs || { [ "$(squeue -h | wc -l)" = "${left:-}" ] || { left=$(squeue -h | wc -l); end=$((SECONDS + 600)); }; false; }; }

cancelled() { begun 1 600 && scancel "$(cat /tmp/job)" && over; }
killed() { begun 2 600 && scancel -f -s KILL "$(cat /tmp/job)" && over; }
out_of_time() { begun 1 600 --time=1 && over; }
leaves_a_process() { # the scrub of the epilog ends it
  LEAVES=yes begun 1 2
  over
  refused pgrep -f 'sleep 5000'
}

# The prolog drains the node and says why; Slurm holds the job, and runs it when an operator has decided.
requeued() { # JOB REASON
  until_true drained "$2"
  sinfo -R -h -o %200E
  until_true pending "$1"
  refused said "$1" "0 begins"
}
runs_after_all() { # JOB
  resume
  scontrol release "$1"
  until_true gone "$1"
  said "$1" ".* ends"
}

service_down() {
  systemctl stop $UNIT
  one=$(job 1 2)
  requeued "$one" 'the scrub service does not answer'
  env -i SLURMD_NODENAME=machine $ETC/autoclave-health.sh # the reason stays
  drained 'the scrub service does not answer'
  systemctl start $UNIT
  runs_after_all "$one"
}

service_hung() {
  systemctl kill --kill-whom=main -s STOP $UNIT
  one=$(job 1 2)
  requeued "$one" 'the scrub service does not answer'
  systemctl kill --kill-whom=main -s CONT $UNIT || true # systemd's watchdog may have been faster
  until_true systemctl is-active -q $UNIT
  runs_after_all "$one"
}

service_restarted_under_a_job() {
  begun 2 45
  systemctl restart $UNIT
  over
  said "$(cat /tmp/job)" "0 ends"
}

health_check() {
  systemctl stop $UNIT
  sed -i 's/HealthCheckInterval=.*/HealthCheckInterval=60/' $ETC/slurm.conf
  scontrol reconfigure
  until_true drained 'doctor: '
  sinfo -R -h -o %200E
  sed -i 's/HealthCheckInterval=.*/HealthCheckInterval=3600/' $ETC/slurm.conf
  scontrol reconfigure
  systemctl start $UNIT
  until_true ready
  resume
}

sick_gpu() { # GPU 1 of 4, by the steps of the page: Slurm's numbers of the others change
  autoclave quarantine 1 --reason sick > /dev/null
  one=$(job 4 2)
  requeued "$one" 'GPU 1 is quarantined'
  scancel "$one"
  until_true gone "$one"
  gres 0,2-3 3 1
  restart
  resume
  job 2 2 > /dev/null
  begun 3 2
  over
  grep " $(cat /tmp/job) 0 begins 0 2 3" $JOBS/said
  autoclave reinstate 1
  scontrol update nodename=machine state=drain reason="GPU 1 is well again"
  gres 0-3 4
  restart
  resume
  begun 4 2
  over
}

before_reboot() { begun 2 3000 --requeue && cp /tmp/job $JOBS && sync; }
after_reboot() { # Slurm takes the job for running, because its controller was down, too
  cp $JOBS/job /tmp
  until_true free
  scontrol requeue "$(cat /tmp/job)"
  until_true said "$(cat /tmp/job)" "1 ends"
  over
}

cd "$(dirname "$0")/../.."
"$@"
