# Offers 32 MiB of this node's memory as a disk.
set -e
address=$(grep -w "$LAB_NODE-ib" /etc/hosts | cut -d ' ' -f 1)
modprobe nvmet-rdma
grep -q ' /sys/kernel/config ' /proc/mounts || mount -t configfs none /sys/kernel/config
truncate -s 32M /run/disk

cd /sys/kernel/config/nvmet
mkdir subsystems/store
echo 1 >subsystems/store/attr_allow_any_host
mkdir subsystems/store/namespaces/1
printf /run/disk >subsystems/store/namespaces/1/device_path
echo 1 >subsystems/store/namespaces/1/buffered_io
echo 1 >subsystems/store/namespaces/1/enable
mkdir ports/1
echo rdma >ports/1/addr_trtype
echo ipv4 >ports/1/addr_adrfam
echo "$address" >ports/1/addr_traddr
echo 4420 >ports/1/addr_trsvcid
ln -s /sys/kernel/config/nvmet/subsystems/store ports/1/subsystems/store

lab-barrier offered
lab-barrier verified
