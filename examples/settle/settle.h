/* settle.h tells Weir's switch what a function has decided about a flow, so that its further frames pass the function by, or are dropped before it.
 * The image needs the label weir.settles: "true". Include it once; it needs nothing but a C library of Linux. docs/write-an-nf.md explains it.
 *
 *	int fd = settle_open();                      // -1: the platform takes no verdicts; go on without
 *	settle(fd, "pass", frame, length);           // pass, drop or judge; may be called for every frame of a flow, better for every tenth
 *	settle_reset(fd);                            // after a change of rules: all flows come to the function again
 *
 * No call blocks. What cannot be said now is not said (EAGAIN), but for settle_reset, which waits up to a second. */
#ifndef SETTLE_H
#define SETTLE_H

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef SETTLE_PATH
#define SETTLE_PATH "/run/weir/settle.sock"
#endif

static int settle_open(void)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strncpy(to.sun_path, SETTLE_PATH, sizeof(to.sun_path) - 1);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to))) {
		close(fd);
		return -1;
	}
	return fd;
}

/* settle_flow writes a line about a frame's flow; 0: the frame belongs to none. Those are TCP, UDP and ICMP echo with at most one 802.1Q tag, without IP
 * options, extension headers and fragments. Frames that begin or end a connection settle nothing. */
static size_t settle_flow(char *line, size_t size, const char *verdict, const unsigned char *f, size_t n)
{
	char src[INET6_ADDRSTRLEN], dst[INET6_ADDRSTRLEN], vlan[16] = "";
	const char *a = src, *b = dst;
	unsigned int at = 14, proto, room, echo;
	const unsigned char *u;
	int six;

	if (n < 14)
		return 0;
	if (f[12] == 0x81 && f[13] == 0) {
		if (n < 18)
			return 0;
		if ((f[14] << 8 | f[15]) & 0xfff) /* 0 gives a priority alone */
			snprintf(vlan, sizeof(vlan), " vlan %d", (f[14] << 8 | f[15]) & 0xfff);
		at = 18;
	}
	six = f[at - 2] == 0x86 && f[at - 1] == 0xdd;
	if (!six && (f[at - 2] != 8 || f[at - 1] != 0))
		return 0;
	f += at;
	n -= at;
	if (six) {
		if (n < 40 || f[0] >> 4 != 6)
			return 0;
		room = f[4] << 8 | f[5];
		proto = f[6];
		inet_ntop(AF_INET6, f + 8, src, sizeof(src));
		inet_ntop(AF_INET6, f + 24, dst, sizeof(dst));
		u = f + 40;
		n -= 40;
	} else {
		if (n < 20 || f[0] != 0x45 || (f[6] & 0x3f) || f[7])
			return 0;
		room = f[2] << 8 | f[3];
		if (room < 20)
			return 0;
		room -= 20;
		proto = f[9];
		inet_ntop(AF_INET, f + 12, src, sizeof(src));
		inet_ntop(AF_INET, f + 16, dst, sizeof(dst));
		u = f + 20;
		n -= 20;
	}
	if (room > n || room < 8)
		return 0;
	if (proto == 6 || proto == 17) {
		const char *form = six ? "%s %s [%s]:%d [%s]:%d%s\n" : "%s %s %s:%d %s:%d%s\n";

		if (proto == 6 && (room < 20 || (u[13] & 7 && strcmp(verdict, "judge"))))
			return 0; /* FIN, SYN, RST */
		return snprintf(line, size, form, verdict, proto == 6 ? "tcp" : "udp", src, u[0] << 8 | u[1], dst, u[2] << 8 | u[3], vlan);
	}
	echo = six ? 128 : 8;
	if (proto != (six ? 58u : 1u) || u[1] || (u[0] != echo && u[0] != (six ? 129 : 0)))
		return 0;
	if (u[0] != echo) { /* a reply's flow is named like its request's */
		a = dst;
		b = src;
	}
	return snprintf(line, size, "%s icmp %s %s id %d%s\n", verdict, a, b, u[4] << 8 | u[5], vlan);
}

static int settle_say(int fd, const char *line, size_t n, int flags)
{
	char answers[512];

	while (recv(fd, answers, sizeof(answers), MSG_DONTWAIT) > 0) /* who does not read them is not heard any more */
		;
	return send(fd, line, n, flags | MSG_NOSIGNAL) == (ssize_t)n ? 0 : -1;
}

/* settle: 0 said; -1 not, as errno says: EINVAL, the frame belongs to no flow; EAGAIN, not now; EPIPE, the connection is broken: open it again. */
static int settle(int fd, const char *verdict, const unsigned char *frame, size_t length)
{
	char line[256];
	size_t n = settle_flow(line, sizeof(line), verdict, frame, length);

	if (!n || n >= sizeof(line)) {
		errno = EINVAL;
		return -1;
	}
	return settle_say(fd, line, n, MSG_DONTWAIT);
}

static int settle_reset(int fd)
{
	struct pollfd ready = {.fd = fd, .events = POLLOUT};

	poll(&ready, 1, 1000);
	return settle_say(fd, "reset\n", 6, MSG_DONTWAIT);
}

#endif
