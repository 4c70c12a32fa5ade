// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//go:build ignore
// What the programs and user space share: the layout of every map. See ../datapath/ebpf/DESIGN.md.
#pragma once

#include <linux/types.h>

// Bounds. Sizes of tables are set by user space when it makes the maps.
#define MAX_CLONES 4   // flow.MaxClones
#define MAX_STEPS  4096 // of a search
#define MAX_DEPTH  5   // lists within lists: by source, destination and the two ports, then by all
#define MAX_HOPS   128 // dead functions bypassed in a row
#define MAX_SETTLED 64 // functions that have settled a frame's flow, in a row; the next one gets it
#define NEAR       4096

enum stage_id { STAGE_INGRESS = 0, STAGE_EGRESS = 1, STAGES = 2 };

enum port_kind { PORT_NONE = 0, PORT_ENDPOINT = 1, PORT_FUNCTION = 2, PORT_TAP = 3 };

enum port_flags {
	PORT_PEER = 1,   // a veth whose peer is in another namespace: redirect_peer can be used
	PORT_SPEAKS = 2, // what the function's interfaces say for themselves may leave
	PORT_FABRIC = 4, // leads to other switches: frames there may carry a fabric tag
	PORT_GUARD = 8,	 // an endpoint with port security: see struct guard
	PORT_SETTLES = 16, // a function's, which may settle flows: see struct given
};

enum stage_kind {
	KIND_PASS = 0,     // no rules
	KIND_DIRECT = 1,   // one rule for every frame
	KIND_CLASSIFY = 2, // a list of masks
	KIND_DRAIN = 3,    // no rules any more: frames on their way leave by the last one until it expires
};

enum stage_flags {
	STAGE_CACHED = 1, // more than one mask, or something to learn: ask the flow cache first
	STAGE_ONWARD = 2, // at STAGE_INGRESS: some endpoint has rules at STAGE_EGRESS, which may be met without crossing the bridge
};

// Fields that some rule of a stage looks at: the others are not even read.
enum fields {
	FIELD_IN_PORT = 1,
	FIELD_MACS = 2,
	FIELD_VLAN = 4,
	FIELD_TYPE = 8,
	FIELD_ADDRESSES = 16,
	FIELD_PROTO = 32,
	FIELD_PORTS = 64,
};

enum op {
	OP_NORMAL = 0,
	OP_DROP = 1,
	OP_OUTPUT = 2,
	OP_RESUME = 3,
	OP_SEARCH = 254, // no rule: the rules with this part of a key are in a list of their own, from action.rule on
	OP_NONE = 255, // in the flow cache: no rule matches
};

enum action_flags { ACTION_LEARN = 1, ACTION_POP = 2 };

// A fabric tag is an outermost 802.1ad tag with one of these ids at a port into the fabric (flow.TagFirst, flow.TagLast).
#define TAG_FIRST 3585
#define TAG_LAST  4094

#define VLAN_NONE 0xffff
#define HAS_IP	  1 // the IP header is wholly there
#define HAS_PORTS 2 // TCP, UDP, SCTP, no fragment other than the first
#define UNREAD_NETWORK 4 // flow.UnreadNetwork
#define UNREAD_UPPER   8 // flow.UnreadUpper

// key is a frame as rules see it; after & mask, the key of a tuple. Numbers in host order, addresses as on the wire.
struct key {
	__u16 mask;    // of a tuple: which mask; of a flow: 0
	__u16 port;    // slot of the port where the rule applies
	__u16 in_port; // STAGE_EGRESS: slot of the port where the frame had entered
	__u8 stage;
	__u8 proto;
	__u16 vlan; // id of the outermost tag, VLAN_NONE without one
	__u16 ethertype;
	__u8 has; // HAS_IP, HAS_PORTS, UNREAD_NETWORK, UNREAD_UPPER
	__u8 pad;
	__u16 tag; // of the fabric, 0 without one
	__u8 src_mac[6];
	__u8 dst_mac[6];
	__u16 src_port;
	__u16 dst_port;
	__u8 src[16]; // IPv4 in the first four bytes
	__u8 dst[16];
} __attribute__((aligned(8)));

#define KEY_WORDS (sizeof(struct key) / 8)

// clone is a copy's way.
struct clone {
	__u16 port; // its slot
	__u16 push; // fabric tag to put on, 0 none
};

struct action {
	__u8 op;
	__u8 clones;
	__u8 flags;
	__u8 pad;
	__u16 target; // slot of a port; 0: the learned one
	__u16 push;   // fabric tag to put on, 0 none
	__u32 rule; // slot in rule_counts
	struct clone clone[MAX_CLONES];
};

struct tuple_copy {
	__u64 cookie;
	__u32 priority; // + 1; 0: not in this copy
	struct action action;
};

struct tuple {
	struct tuple_copy copy[2];
};

struct list_copy {
	__u16 mask; // slot in masks
	__u16 pad;
	__u32 priority; // + 1; the highest of its tuples; 0: the list's end
};

struct list {
	struct list_copy copy[2];
};

struct stage {
	__u8 kind;
	__u8 flags;
	__u16 together; // slot in masks: the union of the list's masks
	__u16 count;    // of the list, its end included
	__u16 pad;
	__u32 first;
	__u32 fields;
	struct action action; // KIND_DIRECT, KIND_DRAIN
	__u64 until;	      // KIND_DRAIN: CLOCK_MONOTONIC
};

struct stages {
	struct stage stage[STAGES];
};

// port: slot 0 is no port.
struct port {
	__u32 ifindex;
	__u8 kind;
	__u8 flags;
	__u16 function; // slot in functions
	__u16 opposite; // slot of an inline function's other port
	__u8 peer[6];	// MAC behind an endpoint's veth
	__u8 own[2][6]; // MACs of the function's interfaces
	__u32 source;	// PORT_GUARD: an IPv4 address, as on the wire, that packets from the MAC peer may have; 0 none
	__u64 source6[2]; // the same of IPv6
	struct stages copy[2];
};

enum function_state { FUNCTION_DOWN = 0, FUNCTION_UP = 1 };
enum on_fail { ON_FAIL_DROP = 0, ON_FAIL_BYPASS = 1 };

struct function {
	__u32 state;
	__u32 on_fail;
	__u32 pid;
	__u32 used;
	__u32 generation; // settled flows of another one do not count
	__u32 pad;
};

// A flow at a function's port. Its table is the function's own; the map settled has it by the function's slot.
#define SETTLE_V4 4
#define SETTLE_V6 6

#define ICMP_REQUEST  8
#define ICMP_REPLY    0
#define ICMP6_REQUEST 128
#define ICMP6_REPLY   129

struct settle_key {
	__u16 port; // slot of the port where the frames enter the function
	__u16 vlan; // id of the only tag, VLAN_NONE without one and of the priority tag (id 0)
	__u16 src_port; // of ICMP echo: the id
	__u16 dst_port; // of ICMP echo: the type
	__u8 family;
	__u8 proto;
	__u8 pad[2];
	__u32 src[4]; // as on the wire; IPv4 in the first, the rest 0
	__u32 dst[4];
};

enum verdict { VERDICT_NONE = 0, VERDICT_PASS = 1, VERDICT_DROP = 2, VERDICT_REWRITE = 3, VERDICT_MASK = 3 };

#define VERDICT_BITS 8 // a byte, so that it can be written by itself

// Times of settled flows are in ticks of 2^20 ns, CLOCK_MONOTONIC.
#define TICK_SHIFT 20
#define SETTLE_IDLE 57220   // 60 s: a flow that is idle for so long is not known any more
#define SETTLE_MOST 286102  // 300 s: a verdict is taken back at this age
#define SETTLE_BAR 191	    // 200 ms: after a SYN, FIN or RST a verdict may still be about the time before

enum rewrite_end { REWRITE_SOURCE = 0, REWRITE_TARGET = 1 };

// rewrite is how a frame of TCP or UDP comes out of the function: one end has another address and port.
struct rewrite {
	__u16 end;  // enum rewrite_end
	__u16 port; // as keys have it
	__u8 mac[6]; // of the destination from now on; 0: as it was
	__u16 pad;
	__u32 addr[4]; // as keys have it
};

// given is a flow that was given to a function, and what the function said of it.
struct given {
	__u64 state; // verdict, and above it (VERDICT_BITS) the tick before which none is taken
	__u64 since; // the verdict
	__u64 last;  // its last frame
	__u32 generation;
	__u8 macs[12]; // of the frame that was given: a verdict is about frames between these two
	struct rewrite rewrite; // VERDICT_REWRITE: written while there is no verdict
	__u32 walked; // the tick, without its upper half, of the last frame that asked all functions of the stretch
	__u64 packets, bytes; // that did not enter the function, since the verdict
	__u32 turn; // of the flow's bucket when the verdict was given
	__u32 pad;
	__u64 stretch; // the functions behind this one that the flow passes by, too: see STRETCH_MOST
	__u64 ahead_packets, ahead_bytes; // of the stretch since then: nobody there has counted them yet, nor this entry
};

// A stretch are functions in a line, from the one on that has the entry: rules for every frame lead from each to the next, without copies and tags, and
// all have said pass. The word holds for as long as the version of the rules, the sum of the functions' generations and the turn of the flow's bucket are
// as it has them. It is made anew by a frame that asks each function.
#define STRETCH_MOST 256 // ticks: then the next frame asks
#define STRETCH_FUNCTIONS 16 // behind the first one
#define STRETCH_BITS 6 // of how many they are
#define VERSION_BITS 14
#define GENERATION_BITS 16
#define TURN_BITS 28
#define TURNS 4096

// settle_work is where the programs work on the frame under way: their stack is short.
struct settle_work {
	struct settle_key key;
	__u32 head[10];
	__u32 macs[3];
	__u16 opposite; // slot of the function's other port
	__u16 network;	// where the IP header of a frame with a key begins
	__u64 now, until;
	struct given fresh;
	struct rewrite rewrite; // VERDICT_REWRITE: of the frame
	// The stretch that the frame walks along.
	__u32 turn, generations;
	__u16 first; // slot of the port of the function that has its entry; 0 none
	__u16 function; // that function's slot
	__u16 behind; // how many have said pass
	__u16 pad;
	// What leap and repay take.
	__u64 stretch, packets, bytes;
	// What leap has found: the slot of each function's port, and the rule that leads there.
	struct {
		__u32 slot, rule;
	} way[STRETCH_FUNCTIONS];
};

// settle_request is what user space runs the program settle with, as a frame.
struct settle_request {
	__u8 head[16]; // 0
	struct settle_key key; // port is not read
	__u16 port[2];	       // of the function; 0 none
	__u16 function;
	__u8 verdict;
	__u8 oneway; // 1: not the reverse direction; always of VERDICT_REWRITE
	__u8 pad[4];
	struct rewrite rewrite;
};

#define SETTLE_EARLY 256 // in the program's answer, beside how many entries there are: some is barred

struct control {
	__u32 version; // copy[version & 1] is in force
	__u32 past;    // 1: frames may pass the bridge by, nobody's rules look at what crosses it
	__u32 secret;  // mark of a frame that is done with its chain: secret ^ ifindex, never 0
	__u32 owned;   // MACs that guards name: how many
};

struct near {
	__u32 ifindex;
	__u32 slot;
};

struct flow {
	__u32 version;
	__u32 moves;
	struct action action;
};

struct exit_key {
	__u8 mac[6];
	__u16 vlan;
	__u32 stage;
};

// station_key is the address of the only station behind an endpoint's veth, unless another has the same one.
struct station_key {
	__u8 mac[6];
	__u16 pad;
};

enum guard_flags {
	GUARD_MAC = 1,	  // source MACs are checked
	GUARD_BOUND = 2,  // addresses are checked
	GUARD_DHCP = 4,	  // a DHCP server
	GUARD_ROUTER = 8, // a router: it forwards others' packets
};

// Bounds: flow.MaxGuardMACs, flow.MaxGuardAddresses.
#define GUARD_MACS 8
#define GUARD_V4   32
#define GUARD_V6   32

struct guard4 {
	__u32 addr, mask; // as on the wire
};

struct guard6 {
	__u64 addr[2], mask[2]; // as on the wire
};

// guard is the port security of an endpoint: flow.Guard.
struct guard {
	__u8 flags;
	__u8 macs, v4s, v6s;
	__u8 mac[GUARD_MACS][6];
	__u8 v4_shared, v6_shared; // so many at the end of v4 and v6 are shared: no station tells that it has them
	__u8 pad[2];
	struct guard4 v4[GUARD_V4];
	struct guard6 v6[GUARD_V6];
};

// refusal says why a guard drops a frame: flow.Refusal.
enum refusal {
	ACCEPTED = 0,
	REFUSED_MAC = 1,
	REFUSED_UNREAD = 2,
	REFUSED_DHCP = 3,
	REFUSED_RA = 4,
	REFUSED_ARP = 5,
	REFUSED_ND = 6,
	REFUSED_SOURCE = 7,
	REFUSALS = 8,
};

struct guard_stats {
	__u64 refused[REFUSALS];
};

struct port_stats {
	__u64 rx_packets, rx_bytes;
	__u64 tx_packets, tx_bytes;
	__u64 drop_packets, drop_bytes;
	__u64 settled_packets, settled_bytes; // did not enter the function here, since it had settled their flow
};

struct rule_stats {
	__u64 packets, bytes;
};

// A probe frame is sent into a function by user space (datapath/internal/probing): an Ethernet header, whose addresses are the function's
// secret, and a nonce, which is new each time.
#define PROBE_TYPE 0x88b5 // IEEE 802 local experimental
#define PROBE_NONCE 14 // offset in the frame

// probe is what is known of a function's probes, by its slot in functions.
struct probe {
	__u64 time;	// CLOCK_MONOTONIC: when the outstanding one came out; 0 not yet
	__u64 nonce[2]; // of the outstanding one, as in the frame; 0 none
	__u8 dst[6], src[6]; // of all probes; 0: none has been sent yet
	__u16 port;	     // slot where they come out
	__u16 pad;
};
