#!/bin/busybox sh
# The first program of a guest: makes the shared CXL memory /dev/dax0.0, runs the job that stands behind ` -- ` on the
# kernel's command line, and powers off. Lines that start with ### are for the task that started the guest.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
# Memory that only the processes of this host share.
mkdir -p /dev/shm /tmp
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp

end() {
    echo "### UPTIME $(cut -d' ' -f1 /proc/uptime)"
    echo "### RC $1"
    poweroff -f
}

fail() {
    echo "### GUEST: $1"
    dmesg | tail -n 20
    end 99
}

# Waits until a path exists: the kernel finds devices in its own time.
wait_for() {
    turn=0
    until [ -e "$1" ]; do
        turn=$((turn + 1))
        [ $turn -lt 600 ] || fail "$1 does not appear"
        sleep 0.05
    done
}

for module in /modules/*.ko; do
    insmod "$module" || fail "$module cannot be loaded"
done
wait_for /sys/bus/cxl/devices/mem0
wait_for /sys/bus/cxl/devices/decoder0.0
# The device's own port may come after it; until then there is no way to make a region.
turn=0
until cxl create-region -t ram -d decoder0.0 -m mem0 > /dev/null; do
    turn=$((turn + 1))
    [ $turn -lt 10 ] || fail "the CXL memory does not become a region"
    sleep 0.5
done
wait_for /sys/bus/dax/devices/dax0.0
# No driver takes it by itself, and the one for system memory must not.
echo dax0.0 > /sys/bus/dax/drivers/device_dax/new_id
wait_for /sys/bus/dax/drivers/device_dax/dax0.0
wait_for /dev/dax0.0

job=$(sed -n 's/.* -- //p' /proc/cmdline)
[ -n "$job" ] || fail "the kernel's command line names no job"
echo "### JOB $job"
$job
end $?
