// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore
// A function is down the instant its process dies, whether the daemon lives or not.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "weir.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); // set by user space
	__type(key, __u32);
	__type(value, struct function);
} functions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); // set by user space
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); // process id in the initial namespace
	__type(value, __u32); // slot in functions
} processes SEC(".maps");

SEC("raw_tp/sched_process_exit") int process_exit(void *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();
	__u32 pid = id >> 32, *found, slot;
	struct function *f;

	if ((__u32)id != pid)
		return 0; // a thread, not the group's leader
	found = bpf_map_lookup_elem(&processes, &pid);
	if (!found)
		return 0; // not a function's
	slot = *found;
	// First out of the table: whoever writes the function and then finds the process there knows that Down is still to come.
	bpf_map_delete_elem(&processes, &pid);
	f = bpf_map_lookup_elem(&functions, &slot);
	if (f && f->pid == pid)
		f->state = FUNCTION_DOWN;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
