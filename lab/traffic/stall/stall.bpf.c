// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore
// A watch over CPUs, and a program that takes a CPU away, to test the watch with. Both run in hard interrupts, by the timers of perf's software
// clocks: what runs in softirq or in a task, a path that is overloaded for example, cannot make them late.
#include <linux/bpf.h>
#include <linux/bpf_perf_event.h>
#include <bpf/bpf_helpers.h>

#define CPUS 2
#define SPANS 512

enum what { LATE = 1, AWAY = 2 };

struct span {
	__u64 begin, end; /* CLOCK_MONOTONIC, ns */
	__u64 what;
};

struct watch {
	__u64 period, limit; /* ns */
	__u64 last;          /* time of the last tick; 0: there was none */
	__u64 away;          /* time of the first tick at which the thread was not there; 0: it is there */
	__u64 dev, ino;      /* of the PID namespace of thread */
	__u64 ticks;
	__u64 n, unlisted; /* spans, and those for which there was no room */
	__u32 cpu, thread; /* thread: that is to be on the CPU; 0: none */
	struct span list[SPANS];
};

struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, CPUS); __type(key, __u32); __type(value, struct watch); } watches SEC(".maps");

static __always_inline void add(struct watch *w, __u64 what, __u64 begin, __u64 end)
{
	__u64 n = w->n;

	if (n >= SPANS) {
		w->unlisted++;
		return;
	}
	w->list[n].begin = begin;
	w->list[n].end = end;
	w->list[n].what = what;
	w->n = n + 1;
}

/* there tells whether the thread has the CPU, or the kernel's thread that does softirq work that the thread's frames made. */
static __always_inline int there(const struct watch *w)
{
	struct bpf_pidns_info info;
	static const char worker[8] = "ksoftirq"; /* ksoftirqd of some CPU: here it is this one's */
	union { char text[16]; __u64 head; } name = {};

	if (!w->thread || (!bpf_get_ns_current_pid_tgid(w->dev, w->ino, &info, sizeof(info)) && info.pid == w->thread))
		return 1;
	bpf_get_current_comm(name.text, sizeof(name.text));
	return name.head == *(const __u64 *)worker;
}

static __always_inline int ticked(__u32 i)
{
	struct watch *w = bpf_map_lookup_elem(&watches, &i);
	__u64 now = bpf_ktime_get_ns(), last;

	if (!w)
		return 0;
	last = w->last;
	w->last = now;
	w->ticks++;
	if (last && now - last > w->period + w->limit)
		add(w, LATE, last, now);
	if (!there(w)) {
		if (!w->away)
			w->away = now;
	} else if (w->away) {
		if (now - w->away > w->limit)
			add(w, AWAY, w->away - w->period, now);
		w->away = 0;
	}
	return 0;
}

SEC("perf_event") int tick0(struct bpf_perf_event_data *ctx) { return ticked(0); }
SEC("perf_event") int tick1(struct bpf_perf_event_data *ctx) { return ticked(1); }

struct hold {
	__u64 length;     /* ns; 0: it holds nothing */
	__u64 begin, end; /* of the last time */
	__u64 times;
};

struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, struct hold); } holds SEC(".maps");

static long until(__u32 i, __u64 *end) { return bpf_ktime_get_ns() >= *end; }

/* take keeps its CPU in a hard interrupt. */
SEC("perf_event") int take(struct bpf_perf_event_data *ctx)
{
	__u32 zero = 0;
	struct hold *h = bpf_map_lookup_elem(&holds, &zero);
	__u64 begin = bpf_ktime_get_ns(), end;

	if (!h || !h->length)
		return 0;
	end = begin + h->length;
	bpf_loop(1 << 23, until, &end, 0);
	h->begin = begin;
	h->end = bpf_ktime_get_ns();
	h->length = 0; /* once */
	h->times++;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
