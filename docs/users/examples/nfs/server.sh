# Exports a folder in memory by NFS 4 over RDMA.
set -e
modprobe nfsd
modprobe rpcrdma
# What the package's maintainer has made where packages are installed.
mkdir -p /srv/files /var/lib/nfs/v4recovery
touch /etc/exports /var/lib/nfs/etab /var/lib/nfs/rmtab
mount -t nfsd nfsd /proc/fs/nfsd
mount -t tmpfs tmpfs /srv/files
exportfs -o rw,no_root_squash,fsid=0 '*:/srv/files'
rpc.mountd --no-udp --no-nfs-version 3
# Who was there before is not waited for longer than has to be.
rpc.nfsd --no-udp --no-nfs-version 3 --grace-time 10 --lease-time 10 --rdma=20049 2

lab-barrier exported
lab-barrier written
md5sum </srv/files/random >/srv/files/sum
lab-barrier summed
lab-barrier compared
