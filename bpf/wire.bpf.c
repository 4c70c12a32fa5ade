// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore
// The forwarder "wire", inside a function's namespace, at the ingress of both its ports. Their interface indexes differ in the last
// bit only (1024 and 1025): a frame that came in at one goes to the switch's end of the other, without a queue.
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

SEC("tc") int wire(struct __sk_buff *skb)
{
	return bpf_redirect_peer(skb->ifindex ^ 1, 0);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
