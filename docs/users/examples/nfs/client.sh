# Writes a file, and compares what the server has of it, and what is read back; and another one while the cable is
# out for five seconds.
set -e
modprobe rpcrdma
lab-barrier exported
mkdir -p /mnt/files
mount.nfs4 -n -o rdma,port=20049 "$LAB_PEER-ib:/" /mnt/files
grep -o 'proto=rdma' /proc/mounts
head -c 20000000 /dev/urandom >/run/random
cp /run/random /mnt/files/random
sync
lab-barrier written
lab-barrier summed
[ "$(cat /mnt/files/sum)" = "$(md5sum </run/random)" ]
echo 3 >/proc/sys/vm/drop_caches
cmp /run/random /mnt/files/random

ibvswitch link down client:1
dd if=/run/random of=/mnt/files/later bs=1M conv=fsync 2>/dev/null &
sleep 5
kill -0 $! # It waits.
ibvswitch link up client:1
wait $!
echo 3 >/proc/sys/vm/drop_caches
cmp /run/random /mnt/files/later
umount /mnt/files
echo 20000000 bytes are the same, twice
lab-barrier compared
