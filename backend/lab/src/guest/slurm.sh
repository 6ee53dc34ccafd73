# Makes this node one of a cluster: $1 is its name, $2 the head, $3 the memory of nodes in MiB, $4 their processors, $5 the
# key of munge, $6 the nodes that are off, with spaces between, then those that are on.
cluster=$1 head=$2 memory=$3 processors=$4 key=$5 off=$6
shift 6
mkdir -p /etc/slurm /etc/munge /run/munge /var/lib/munge /var/log/munge /var/spool/slurmd /var/spool/slurmctld || exit
chmod 700 /etc/munge /var/lib/munge /var/log/munge
(umask 377 && printf %s "$key" >/etc/munge/munge.key) || exit
{
    echo "ClusterName=$cluster"
    echo "SlurmctldHost=$head"
    cat <<'END'
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
END
    for node in "$@"; do echo "NodeName=$node CPUs=$processors RealMemory=$memory"; done
    for node in $off; do echo "NodeName=$node CPUs=$processors RealMemory=$memory State=DOWN Reason=off"; done
    echo "PartitionName=$cluster Nodes=ALL Default=YES State=UP"
} >/etc/slurm/slurm.conf
echo CgroupPlugin=disabled >/etc/slurm/cgroup.conf
# Root is the only user here, and munged says that it should not be.
munged --force 2>/dev/null || { echo "munged does not start"; exit 1; }
if [ "$(hostname)" = "$head" ]; then
    slurmctld || exit
fi
slurmd
