# Attaches the disk, and has fio write blocks of many sizes, read them back past the cache, and compare them.
set -e
address=$(grep -w "$LAB_PEER-ib" /etc/hosts | cut -d ' ' -f 1)
modprobe nvme-rdma
lab-barrier offered
echo "transport=rdma,traddr=$address,trsvcid=4420,nqn=store" >/dev/nvme-fabrics
until [ -b /dev/nvme0n1 ]; do sleep 0.05; done
cd /tmp
fio --name=verified --filename=/dev/nvme0n1 --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite \
    --bsrange=4k-128k --verify=crc32c --do_verify=1 --verify_fatal=1 --output-format=terse --terse-version=5 |
    cut -d ';' -f 1-5
echo 1 >/sys/class/nvme/nvme0/delete_controller
lab-barrier verified
