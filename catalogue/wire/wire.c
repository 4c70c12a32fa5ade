// SPDX-License-Identifier: Apache-2.0
// wire: the process of a function whose frames the switch's own program forwards inside the function's namespace. It holds the
// container and waits: SIGTERM or SIGINT ends it, children that it inherits as process 1 are reaped. Freestanding: no C library,
// about 10 KB of memory, no start-up work.

#if defined(__x86_64__)
enum { SYS_RT_SIGPROCMASK = 14, SYS_WAIT4 = 61, SYS_RT_SIGTIMEDWAIT = 128, SYS_EXIT_GROUP = 231 };
static long call(long nr, long a, long b, long c, long d)
{
	long ret;
	register long r10 __asm__("r10") = d;
	__asm__ volatile("syscall" : "=a"(ret) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
	return ret;
}
#elif defined(__aarch64__)
enum { SYS_RT_SIGPROCMASK = 135, SYS_WAIT4 = 260, SYS_RT_SIGTIMEDWAIT = 137, SYS_EXIT_GROUP = 94 };
static long call(long nr, long a, long b, long c, long d)
{
	register long x8 __asm__("x8") = nr;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
}
#else
#error "wire: system call numbers of this architecture are not known: add them here"
#endif

enum { SIG_BLOCK = 0, SIGINT = 2, SIGTERM = 15, SIGCHLD = 17, WNOHANG = 1 };
#define BIT(sig) (1UL << ((sig)-1))

// Blocked signals stay pending even for process 1, which has no handlers: the wait below takes them.
void _start(void)
{
	unsigned long set = BIT(SIGINT) | BIT(SIGTERM) | BIT(SIGCHLD);

	call(SYS_RT_SIGPROCMASK, SIG_BLOCK, (long)&set, 0, sizeof(set));
	for (;;) {
		long sig = call(SYS_RT_SIGTIMEDWAIT, (long)&set, 0, 0, sizeof(set));

		if (sig == SIGTERM || sig == SIGINT)
			call(SYS_EXIT_GROUP, 0, 0, 0, 0);
		while (call(SYS_WAIT4, -1, 0, WNOHANG, 0) > 0)
			;
	}
}
