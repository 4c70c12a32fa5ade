//go:build ignore

// The lab's own program inside guests: what waits, what runs and times another program, what reads and writes memory, what sends back requests. It is the
// same file on the host, in every container and in every machine, so it needs nothing there: no C library, no shell, no allocation. See doc.go.
//
// Usage: probe wait | run PROGRAM ARGUMENT... | begin PROGRAM ARGUMENT... | memory BYTES MILLISECONDS | echo tcp|udp PORT
#if defined(__aarch64__)
#define __ASM_X86_BITSPERLONG_H // the headers here may be those of an x86: see build.sh
#define __BITS_PER_LONG 64
#include <asm-generic/unistd.h>
#else
#include <asm/unistd.h>
#endif
#include <linux/errno.h>
#include <linux/fcntl.h>
#include <linux/mman.h>
#include <linux/signal.h>
#include <linux/time.h>

typedef unsigned long u64;

static long sys(long n, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
	long r;
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return r;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
#else
#error "no system calls for this processor"
#endif
}
#define S(n, a, b, c, d, e, f) sys(__NR_##n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

enum { FAILED = 125 };
// Of sockets; in.h, tcp.h and socket.h need those of the C library.
enum { INTERNET = 2, STREAM = 1, DATAGRAM = 2, OF_SOCKET = 1, REUSE = 2, RECEIVE_LIMIT = 20, OF_TCP = 6, NODELAY = 1, NOSIGNAL = 0x4000 };
struct address {
	unsigned short family, port;
	unsigned int host;
	char zero[8];
};

static u64 length(const char *s)
{
	u64 n = 0;
	while (s[n])
		n++;
	return n;
}

static int equal(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

static void say(int fd, const char *s) { S(write, fd, s, length(s), 0, 0, 0); }

static void number(u64 v)
{
	char text[21], *p = text + sizeof text - 1;
	*p = 0;
	do
		*--p = (char)('0' + v % 10);
	while (v /= 10);
	say(1, p);
}

__attribute__((noreturn)) static void leave(int code)
{
	for (;;)
		S(exit_group, code, 0, 0, 0, 0, 0);
}

__attribute__((noreturn)) static void fail(const char *what, long error)
{
	say(2, "probe: ");
	say(2, what);
	if (error) {
		say(2, ": errno ");
		S(dup3, 2, 1, 0, 0, 0, 0);
		number((u64)-error);
	}
	say(2, "\n");
	leave(FAILED);
}

// natural number of decimal digits, at most `most`.
static u64 natural(const char *s, u64 most)
{
	u64 v = 0;
	for (const char *p = s; *p; p++) {
		if (*p < '0' || *p > '9' || v > most)
			fail("want a number within its bounds", 0);
		v = 10 * v + (u64)(*p - '0');
	}
	if (!*s || v > most)
		fail("want a number within its bounds", 0);
	return v;
}

static u64 now(void)
{
	struct __kernel_timespec t;
	S(clock_gettime, 1 /* CLOCK_MONOTONIC */, &t, 0, 0, 0, 0);
	return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec;
}

// wait says that it is there, and stays.
__attribute__((noreturn)) static void stay(void)
{
	say(1, "ready\n");
	for (;;)
		S(ppoll, 0, 0, 0, 0, 0, 0);
}

// run another program, whose standard output goes nowhere, and print how many nanoseconds it took; its exit code is ours.
static void run(char **argv, char **envp)
{
	u64 begin = now();
	long pid = S(clone, SIGCHLD, 0, 0, 0, 0, 0);
	if (pid < 0)
		fail("clone", pid);
	if (pid == 0) {
		long null = S(openat, AT_FDCWD, "/dev/null", O_WRONLY, 0, 0, 0);
		if (null < 0)
			fail("open /dev/null", null);
		S(dup3, null, 1, 0, 0, 0, 0);
		fail(argv[0], S(execve, argv[0], argv, envp, 0, 0, 0));
	}
	int status = 0;
	long r;
	while ((r = S(wait4, pid, &status, 0, 0, 0, 0)) == -EINTR)
		;
	u64 took = now() - begin;
	if (r < 0)
		fail("wait4", r);
	number(took);
	say(1, "\n");
	leave(status & 0x7f ? 128 + (status & 0x7f) : status >> 8 & 0xff);
}

// begin says that it is there, and runs a program when its input ends: all of whom that is the input begin at once.
static void begin(char **argv, char **envp)
{
	char c;
	long n;
	say(1, "ready\n");
	while ((n = S(read, 0, &c, 1, 0, 0, 0)) > 0 || n == -EINTR)
		;
	if (n < 0)
		fail("input", n);
	run(argv, envp);
}

// 256 bits: the smallest block of all, and what is read or written at a time.
typedef u64 vec __attribute__((vector_size(32)));
enum { LEAST = sizeof(vec) };

#define OPAQUE(x) __asm__ volatile("" : "+m"(x) : : "memory")

// What is done with `count` vectors from `from` on, so many times, or at so many random places of all n.
static void read_on(vec *p, u64 n, u64 from, u64 count, u64 times)
{
	vec a = {0}, b = {0};
	(void)n;
	for (p += from; times; times--) {
		u64 i = 0;
		for (; i + 1 < count; i += 2)
			a ^= p[i], b ^= p[i + 1];
		if (i < count)
			a ^= p[i];
		__asm__ volatile("" : : : "memory");
	}
	a ^= b;
	OPAQUE(a);
}

static void write_on(vec *p, u64 n, u64 from, u64 count, u64 times)
{
	vec v = {times, 1, 2, 3};
	(void)n;
	for (p += from; times; times--) {
		for (u64 i = 0; i < count; i++)
			p[i] = v;
		__asm__ volatile("" : : "r"(p) : "memory");
	}
}

// The places do not depend on what is read: as many accesses are on their way as the processor can have.
#define NEXT(x) ((x) = (x) * 6364136223846793005ul + 1442695040888963407ul)

static u64 place = 1;

static void read_about(vec *p, u64 n, u64 from, u64 count, u64 times)
{
	vec a = {0};
	u64 x = place;
	(void)from;
	for (u64 i = count * times; i; i--) {
		NEXT(x);
		a ^= p[x >> 33 & (n - 1)];
	}
	place = x;
	OPAQUE(a);
}

static void write_about(vec *p, u64 n, u64 from, u64 count, u64 times)
{
	vec v = {times, 1, 2, 3};
	u64 x = place;
	(void)from;
	for (u64 i = count * times; i; i--) {
		NEXT(x);
		p[x >> 33 & (n - 1)] = v;
	}
	place = x;
	__asm__ volatile("" : : "r"(p) : "memory");
}

// How much is done between two looks at the clock, and the largest block that caches may hold: it is read once beforehand.
enum { SLICE = 1 << 20, CACHED = 1 << 26 };

static void measure(const char *name, void (*work)(vec *, u64, u64, u64, u64), vec *p, u64 bytes, u64 span)
{
	u64 n = bytes / LEAST, count = bytes < SLICE ? n : SLICE / LEAST, times = bytes < SLICE ? SLICE / bytes : 1, from = 0, done = 0, begin, took;
	if (bytes <= CACHED)
		read_on(p, n, 0, n, 1);
	work(p, n, 0, count, times); // predictors
	begin = now();
	do {
		work(p, n, from, count, times);
		from = (from + count) & (n - 1);
		done += count * LEAST * times;
	} while ((took = now() - begin) < span);
	say(1, name);
	say(1, " ");
	number(done);
	say(1, " ");
	number(took);
	say(1, "\n");
}

static void memory(u64 bytes, u64 span)
{
	if (bytes < LEAST || bytes & (bytes - 1))
		fail("memory: want a power of two, 32 bytes or more", 0);
	long at = S(mmap, 0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (at < 0 && at > -4096)
		fail("memory: mmap", at);
	vec *p = (vec *)at;
	write_on(p, bytes / LEAST, 0, bytes / LEAST, 1);
	measure("read", read_on, p, bytes, span);
	measure("write", write_on, p, bytes, span);
	measure("random-read", read_about, p, bytes, span);
	measure("random-write", write_about, p, bytes, span);
}

enum { BUFFER = 1 << 16, PATIENCE = 60 };
static char buffer[BUFFER];

// echo sends back what one connection sends until its end, or each datagram until one of a single byte. It ends by itself when nobody asks.
static void echo(int stream, u64 port)
{
	struct address a = {.family = INTERNET, .port = (unsigned short)(port << 8 | port >> 8)}, from;
	int one = 1, size;
	long limit[2] = {PATIENCE, 0}, n, fd = S(socket, a.family, stream ? STREAM : DATAGRAM, 0, 0, 0, 0);
	if (fd < 0)
		fail("socket", fd);
	S(setsockopt, fd, OF_SOCKET, REUSE, &one, sizeof one, 0);
	S(setsockopt, fd, OF_SOCKET, RECEIVE_LIMIT, limit, sizeof limit, 0);
	if ((n = S(bind, fd, &a, sizeof a, 0, 0, 0)) < 0)
		fail("bind", n);
	if (stream) {
		if ((n = S(listen, fd, 1, 0, 0, 0, 0)) < 0)
			fail("listen", n);
		if ((n = S(accept4, fd, 0, 0, 0, 0, 0)) < 0)
			fail("accept", n);
		fd = n;
		S(setsockopt, fd, OF_SOCKET, RECEIVE_LIMIT, limit, sizeof limit, 0);
		S(setsockopt, fd, OF_TCP, NODELAY, &one, sizeof one, 0);
	}
	for (;;) {
		size = sizeof from;
		n = S(recvfrom, fd, buffer, BUFFER, 0, stream ? 0 : (long)&from, stream ? 0 : (long)&size);
		if (n == -EINTR)
			continue;
		if (n < 0)
			fail("receive", n);
		if (n == 0 || (!stream && n == 1))
			return;
		for (long sent = 0, k; sent < n; sent += k)
			if ((k = S(sendto, fd, buffer + sent, n - sent, NOSIGNAL, stream ? 0 : (long)&from, stream ? 0 : size)) <= 0)
				fail("send", k);
	}
}

__attribute__((noreturn, used)) void probe(u64 *stack)
{
	long argc = (long)stack[0];
	char **argv = (char **)(stack + 1), **envp = argv + argc + 1;
	if (argc == 2 && equal(argv[1], "wait"))
		stay();
	else if (argc > 2 && equal(argv[1], "run"))
		run(argv + 2, envp);
	else if (argc > 2 && equal(argv[1], "begin"))
		begin(argv + 2, envp);
	else if (argc == 4 && equal(argv[1], "memory"))
		memory(natural(argv[2], 1ul << 34), natural(argv[3], 60000) * 1000000);
	else if (argc == 4 && equal(argv[1], "echo") && (equal(argv[2], "tcp") || equal(argv[2], "udp")))
		echo(equal(argv[2], "tcp"), natural(argv[3], 65535));
	else
		fail("want wait, run PROGRAM..., begin PROGRAM..., memory BYTES MILLISECONDS, or echo tcp|udp PORT", 0);
	leave(0);
}

#if defined(__x86_64__)
__asm__(".globl _start\n_start: xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call probe\n hlt\n");
#else
__asm__(".globl _start\n_start: mov x29, #0\n mov x0, sp\n bl probe\n brk #1\n");
#endif
