package xdp

import "golang.org/x/sys/unix"

const (
	normal      = 0 // SCHED_NORMAL
	fifo        = 1 // SCHED_FIFO
	resetOnFork = 1 // SCHED_FLAG_RESET_ON_FORK: threads made by this one are ordinary
)

// first puts this thread before all ordinary ones of its CPU, where the kernel lets it. The kernel keeps a share for those that would starve
// otherwise, after about a second (sched_rt_runtime_us, the fair server): runs of less are undisturbed.
func first() (restore func()) {
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: fifo, Flags: resetOnFork, Priority: 1}, 0); err != nil {
		return func() {}
	}
	return func() { _ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: normal}, 0) }
}
