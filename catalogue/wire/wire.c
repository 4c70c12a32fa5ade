// SPDX-License-Identifier: Apache-2.0
// wire: the process of a function whose frames the switch's own program forwards inside the function's namespace. It holds the
// container and waits: SIGTERM or SIGINT ends it, children that it inherits as process 1 are reaped by the kernel. Freestanding: no
// C library, about 10 KB of memory, no start-up work.

#if defined(__x86_64__)
enum { SYS_RT_SIGACTION = 13, SYS_PPOLL = 271, SYS_EXIT_GROUP = 231 };
static long call(long nr, long a, long b, long c, long d)
{
	long ret;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = 0;
	__asm__ volatile("syscall" : "=a"(ret) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
	return ret;
}
#elif defined(__aarch64__)
enum { SYS_RT_SIGACTION = 134, SYS_PPOLL = 73, SYS_EXIT_GROUP = 94 };
static long call(long nr, long a, long b, long c, long d)
{
	register long x8 __asm__("x8") = nr;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = 0;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
	return x0;
}
#else
#error "wire: system call numbers of this architecture are not known: add them here"
#endif

enum { SIGINT = 2, SIGTERM = 15, SIGCHLD = 17 };
#define SA_RESTORER 0x04000000UL // x86-64 wants one, though this handler does not return

// struct kernel_sigaction, which is not the C library's.
struct action {
	void (*handler)(int);
	unsigned long flags;
	void (*restorer)(int);
	unsigned long mask;
};

static void end(int sig)
{
	(void)sig;
	call(SYS_EXIT_GROUP, 0, 0, 0, 0);
}

// The stack is not aligned as the compiler expects of a called function, so nothing is kept on it.
void _start(void)
{
	static const struct action ends = {end, SA_RESTORER, end, 0};
	static const struct action ignores = {(void (*)(int))1, 0, 0, 0}; // SIG_IGN: the kernel reaps children itself

	call(SYS_RT_SIGACTION, SIGTERM, (long)&ends, 0, sizeof(ends.mask));
	call(SYS_RT_SIGACTION, SIGINT, (long)&ends, 0, sizeof(ends.mask));
	call(SYS_RT_SIGACTION, SIGCHLD, (long)&ignores, 0, sizeof(ignores.mask));
	for (;;)
		call(SYS_PPOLL, 0, 0, 0, 0); // nothing, for ever
}
