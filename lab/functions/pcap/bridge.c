// SPDX-License-Identifier: Apache-2.0
// pcap-bridge IN OUT: hands each frame that one interface receives to the other one, unchanged, by libpcap: capture there, inject here. It is the user-space
// bridge of Bonafiglia et al. (EWSDN 2015): one process, which waits when there is nothing to do. SIGTERM or SIGINT ends it, and it prints its counts.
//
// Built static with libpcap. Debian's has D-Bus among its sources of packets, whose library is not static: see dbus_create.

#include <pcap/pcap.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum {
	SNAP = 2048,	      // bytes of a frame that are captured: an MTU of 1500 needs fewer
	RING = 8 << 20,	      // bytes of each interface's ring
	BURST = 64	      // frames of one interface before it is the other's turn
};

struct side {
	const char *name;
	pcap_t *handle;
	struct side *other;
	unsigned long passed, refused;
};

static volatile sig_atomic_t over;

static void end(int sig)
{
	(void)sig;
	over = 1;
}

// Never called: interfaces are opened by name, and none is called dbus. libpcap's own would want a library.
pcap_t *dbus_create(const char *device, char *ebuf, int *is_ours)
{
	(void)device;
	(void)ebuf;
	*is_ours = 0;
	return NULL;
}

int dbus_findalldevs(void *list, char *ebuf)
{
	(void)list;
	(void)ebuf;
	return 0;
}

static void fail(const char *name, const char *what, const char *why)
{
	fprintf(stderr, "pcap-bridge: %s: %s: %s\n", name, what, why);
	exit(1);
}

static void require(struct side *s, const char *what, int status)
{
	if (status != 0)
		fail(s->name, what, status == PCAP_ERROR ? pcap_geterr(s->handle) : pcap_statustostr(status));
}

static void open_side(struct side *s)
{
	char why[PCAP_ERRBUF_SIZE] = "";

	s->handle = pcap_create(s->name, why);
	if (!s->handle)
		fail(s->name, "open", why);
	require(s, "snapshot length", pcap_set_snaplen(s->handle, SNAP));
	require(s, "promiscuous mode", pcap_set_promisc(s->handle, 1));
	require(s, "immediate mode", pcap_set_immediate_mode(s->handle, 1));
	require(s, "ring", pcap_set_buffer_size(s->handle, RING));
	if (pcap_activate(s->handle) < 0) // above 0: a warning
		fail(s->name, "activate", pcap_geterr(s->handle));
	require(s, "received frames only", pcap_setdirection(s->handle, PCAP_D_IN));
	if (pcap_setnonblock(s->handle, 1, why) != 0)
		fail(s->name, "without waiting", why);
}

// A frame that was cut off, or that the other interface refuses, is dropped and counted.
static void pass(unsigned char *from, const struct pcap_pkthdr *h, const unsigned char *frame)
{
	struct side *s = (struct side *)from;

	if (h->caplen < h->len || pcap_inject(s->other->handle, frame, h->caplen) != (int)h->caplen)
		s->refused++;
	else
		s->passed++;
}

int main(int argc, char **argv)
{
	struct side sides[2] = {{0}};
	struct pollfd ready[2];
	struct sigaction ends = {.sa_handler = end};
	int i, n;

	if (argc != 3) {
		fprintf(stderr, "usage: pcap-bridge IN OUT\n");
		return 2;
	}
	sigaction(SIGTERM, &ends, NULL);
	sigaction(SIGINT, &ends, NULL);
	for (i = 0; i < 2; i++) {
		sides[i].name = argv[i + 1];
		sides[i].other = &sides[1 - i];
		open_side(&sides[i]);
		ready[i].fd = pcap_get_selectable_fd(sides[i].handle);
		ready[i].events = POLLIN;
	}
	fprintf(stderr, "pcap-bridge: %s and %s, %s\n", argv[1], argv[2], pcap_lib_version());
	while (!over) {
		if (poll(ready, 2, -1) < 0)
			continue; // a signal
		for (i = 0; i < 2; i++) {
			n = pcap_dispatch(sides[i].handle, BURST, pass, (unsigned char *)&sides[i]);
			if (n == PCAP_ERROR)
				fail(sides[i].name, "receive", pcap_geterr(sides[i].handle));
		}
	}
	for (i = 0; i < 2; i++)
		fprintf(stderr, "pcap-bridge: from %s %lu passed, %lu refused\n", sides[i].name, sides[i].passed, sides[i].refused);
	return 0;
}
