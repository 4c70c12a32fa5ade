//go:build ignore

// The first program of a container, and of whatever prepares one: it carries out a list of steps that package entry (entry.go) has written, and then
// executes another program. It runs where nothing can be relied on (no C library, no shell, no file of the host), so it is one static file of a few
// kilobytes that allocates nothing. It decides nothing: order, names and numbers are the list's.
//
// Usage: entry LIST. The list is read from the descriptor of that number, or else from the file of that name. Its first failing step is reported as
// {step, errno} on the reply, and ends the program.
#if defined(__aarch64__)
#define __ASM_X86_BITSPERLONG_H // the headers here may be those of an x86: see build.sh
#define __BITS_PER_LONG 64
#include <asm-generic/unistd.h>
#else
#include <asm/unistd.h>
#endif
#include <linux/capability.h>
#include <linux/fcntl.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <linux/signal.h>
#include <linux/stat.h>
#include <linux/wait.h>
#include <linux/errno.h>
#include <asm/ioctls.h>

typedef unsigned int u32;
typedef unsigned long u64;

#include "steps.h"

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
#define S0(n) sys(__NR_##n, 0, 0, 0, 0, 0, 0)
#define S1(n, a) sys(__NR_##n, (long)(a), 0, 0, 0, 0, 0)
#define S2(n, a, b) sys(__NR_##n, (long)(a), (long)(b), 0, 0, 0, 0)
#define S3(n, a, b, c) sys(__NR_##n, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define S4(n, a, b, c, d) sys(__NR_##n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define S5(n, a, b, c, d, e) sys(__NR_##n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)

// The list, in one buffer: untouched pages cost nothing. Two vectors of pointers follow from its strings.
#define MOST (1 << 20)
#define MOST_WORDS 8192
#define MOST_PATH 4096
static char list[MOST + 8] __attribute__((aligned(8)));
static char *argv[MOST_WORDS + 1], *envp[MOST_WORDS + 1];
static char found[MOST_PATH];
static int reply = -1;

static void report(u32 step, u32 error)
{
	u32 word[2] = {step, error};
	if (reply >= 0)
		S3(write, reply, word, sizeof word);
}

static u64 length(const char *s)
{
	u64 n = 0;
	while (s[n])
		n++;
	return n;
}

static char *decimal(char *end, u64 v) // writes backwards
{
	do
		*--end = '0' + v % 10;
	while (v /= 10);
	return end;
}

// descriptor makes "/proc/self/fd/N".
static const char *descriptor(u32 fd)
{
	static char path[32];
	static const char prefix[] = "/proc/self/fd/";
	char *at = path + sizeof path - 1;
	*at = 0;
	at = decimal(at, fd);
	for (u64 i = sizeof prefix - 1; i > 0; i--)
		*--at = prefix[i - 1];
	return at;
}

// words lays out consecutive strings as a vector; 0: too many.
static int words(char **out, char *s, u64 n)
{
	if (n > MOST_WORDS)
		return 0;
	for (u64 i = 0; i < n; i++, s += length(s) + 1)
		out[i] = s;
	out[n] = 0;
	return 1;
}

static long blocked(u64 signals) { return S4(rt_sigprocmask, SIG_SETMASK, &signals, 0, sizeof signals); }

// As rt_sigaction(2) has it, all zero: SIG_DFL.
static const struct { u64 handler, flags, restorer, mask; } defaults;

// identity takes the user and exactly these capabilities. Root has them by executing; an ordinary user by the ambient set.
static long identity(u32 uid, u32 gid, u64 caps)
{
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct data[2];
	u32 low = (u32)caps, high = (u32)(caps >> 32), ambient = uid != 0;
	long r = 0;
	S5(prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	for (u64 c = 0; c < 64; c++)
		if (!(caps >> c & 1) && (r = S5(prctl, PR_CAPBSET_DROP, c, 0, 0, 0)) < 0) {
			if (r == -EINVAL) // the kernel has no more
				break;
			return r;
		}
	if ((r = S5(prctl, PR_SET_KEEPCAPS, 1, 0, 0, 0)) < 0 || (r = S2(setgroups, 0, 0)) < 0 || (r = S3(setresgid, gid, gid, gid)) < 0 ||
	    (r = S3(setresuid, uid, uid, uid)) < 0)
		return r;
	data[0].effective = data[0].permitted = low;
	data[1].effective = data[1].permitted = high;
	data[0].inheritable = ambient ? low : 0;
	data[1].inheritable = ambient ? high : 0;
	if ((r = S2(capset, &head, data)) < 0 || (r = S5(prctl, PR_SET_KEEPCAPS, 0, 0, 0, 0)) < 0)
		return r;
	for (u64 c = 0; ambient && c < 64; c++)
		if (caps >> c & 1 && (r = S5(prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, c, 0, 0)) < 0)
			return r;
	return 0;
}

// executable tells whether a path is a file that this user may execute.
static long executable(const char *path)
{
	struct statx st;
	long r = S5(statx, AT_FDCWD, path, 0, STATX_TYPE, &st);
	if (r < 0)
		return r;
	if ((st.stx_mode & S_IFMT) != S_IFREG)
		return -EACCES;
	return S4(faccessat2, AT_FDCWD, path, 1, 0x200 /* AT_EACCESS */);
}

// find looks a command up as execvp(3) does, in PATH of the new environment.
static long find(char *name, char **env)
{
	const char *path = "";
	long r, worst = -ENOENT;
	u64 n = length(name);
	for (const char *s = name; *s; s++)
		if (*s == '/') {
			if ((r = executable(name)) < 0)
				return r;
			if (n >= MOST_PATH)
				return -ENAMETOOLONG;
			for (u64 i = 0; i <= n; i++)
				found[i] = name[i];
			return 0;
		}
	for (; *env; env++)
		if ((*env)[0] == 'P' && (*env)[1] == 'A' && (*env)[2] == 'T' && (*env)[3] == 'H' && (*env)[4] == '=')
			path = *env + 5;
	while (*path) {
		u64 at = 0;
		while (*path && *path != ':' && at < MOST_PATH - 2)
			found[at++] = *path++;
		if (*path && *path != ':')
			return -ENAMETOOLONG;
		if (*path)
			path++;
		if (at + n + 2 > MOST_PATH)
			return -ENAMETOOLONG;
		if (at)
			found[at++] = '/';
		for (u64 i = 0; i <= n; i++)
			found[at + i] = name[i];
		if ((r = executable(found)) == 0)
			return 0;
		if (r == -EACCES)
			worst = r;
	}
	return worst;
}

// attend stays outside for a process that works inside: it hands on SIGTERM and ends as the process does.
static void attend(long child)
{
	const u64 watched = 1UL << (SIGTERM - 1) | 1UL << (SIGCHLD - 1);
	for (;;) {
		int status = 0;
		long r = S4(wait4, child, &status, WNOHANG, 0);
		if (r == child)
			S1(exit_group, status & 0x7f ? 128 + (status & 0x7f) : status >> 8 & 0xff);
		if (r < 0)
			S1(exit_group, 255);
		if (S4(rt_sigtimedwait, &watched, 0, 0, sizeof watched) == SIGTERM)
			S2(kill, child, SIGTERM);
	}
}

// part forks: the child goes on with the list.
static long part(u32 terminal)
{
	long child;
	blocked(~0UL);
	if (terminal)
		S3(ioctl, 0, TIOCNOTTY, 0); // it is the child's, which is in a session of its own
	child = S5(clone, SIGCHLD, 0, 0, 0, 0);
	if (child > 0)
		attend(child);
	if (child == 0 && terminal) {
		long r = S0(setsid);
		return r < 0 ? r : S3(ioctl, 0, TIOCSCTTY, 0);
	}
	return child;
}

// pass says that all is ready, and waits until somebody lets it go on.
static long pass(u32 gate)
{
	char c;
	long r;
	report(READY, 0);
	while ((r = S3(read, gate, &c, 1)) == -EINTR)
		;
	return r == 1 ? 0 : r < 0 ? r : -EPIPE;
}

// join enters a cgroup by a file that is open already, or by its path.
static long join(long fd, const char *path)
{
	long r;
	if (*path && (fd = S4(openat, AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0)) < 0)
		return fd;
	r = S3(write, fd, "0", 1);
	S1(close, fd);
	return r < 0 ? r : 0;
}

static long filter(char *program, u64 n)
{
	struct sock_fprog prog = {(unsigned short)n, (struct sock_filter *)program};
	long r = S5(prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (r < 0 || n == 0)
		return r;
	return S3(seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog);
}

// own replaces the variable that begins with these characters by one with the number of this process.
static void own(char *variable)
{
	char *end = variable + length(variable), digits[24], *from = decimal(digits + sizeof digits, S0(getpid));
	while (end > variable && end[-1] != '=')
		end--;
	while (from < digits + sizeof digits)
		*end++ = *from++;
	*end = 0;
}

static long carry(struct step *s)
{
	char *a = list + s->text[0], *b = list + s->text[1], *c = list + s->text[2], *d = list + s->text[3];
	u64 limit[2];
	long r;
	switch (s->kind) {
	case REPLY:
		reply = s->flags ? S4(openat, AT_FDCWD, descriptor(s->number), O_WRONLY | O_CLOEXEC, 0) : s->number;
		return reply;
	case JOIN:
		return join(s->number, a);
	case OUTLIVE:
		return S5(prctl, PR_SET_PDEATHSIG, s->flags, 0, 0, 0);
	case ENTER:
		return S2(setns, s->number, s->flags);
	case SESSION: // a process group of its own, too: a signal to that must reach nobody outside
		r = S0(setsid);
		return r == -EPERM && S0(getpid) == S1(getsid, 0) ? 0 : r;
	case ROOT:
		if ((r = S2(setgroups, 0, 0)) < 0 || (r = S3(setresgid, 0, 0, 0)) < 0)
			return r;
		return S3(setresuid, 0, 0, 0);
	case UNSHARE:
		return S1(unshare, s->flags);
	case MOUNT:
		r = S5(mount, a, b, c, s->flags, *d ? d : 0);
		return r == -ENOENT && s->number ? 0 : r; // a path that some kernels lack
	case MOVE:
		return S5(move_mount, s->number, "", AT_FDCWD, a, MOVE_MOUNT_F_EMPTY_PATH);
	case DIRECTORY:
		r = S3(mkdirat, AT_FDCWD, a, s->flags);
		return r == -EEXIST ? 0 : r;
	case TOUCH:
		r = S4(openat, AT_FDCWD, a, O_RDONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, s->flags);
		return r < 0 ? r : S1(close, r);
	case HOSTNAME:
		return S2(sethostname, a, length(a));
	case LIMIT:
		limit[0] = s->flags, limit[1] = s->hard;
		return S4(prlimit64, 0, s->number, limit, 0);
	case IDENTITY:
		return identity(s->text[0], s->text[1], s->flags);
	case CHANGE:
		return S1(chdir, a);
	case OPEN:
		if ((r = S4(openat, AT_FDCWD, a, s->flags | O_CLOEXEC, 0)) < 0)
			return r;
		return S3(dup3, r, s->number, O_CLOEXEC);
	case WRITE:
		if ((r = S4(openat, AT_FDCWD, a, O_WRONLY | O_CLOEXEC, 0)) < 0)
			return r;
		limit[0] = r;
		r = S3(write, limit[0], b, length(b));
		S1(close, limit[0]);
		return r;
	case REROOT:
		return (r = S1(fchdir, s->number)) < 0 ? r : S1(chroot, ".");
	case COPY:
		return S3(dup3, s->number, s->flags, 0);
	case PRIVATE:
		return S5(prctl, PR_SET_DUMPABLE, 0, 0, 0, 0);
	case PART:
		return part(s->flags);
	case MASK:
		S1(umask, 022);
		for (int n = 1; n <= 64; n++)
			S4(rt_sigaction, n, &defaults, 0, sizeof(u64)); // but of SIGKILL and SIGSTOP
		return blocked(s->flags);
	case FILTER:
		return filter(a, s->number);
	case OWN:
		own(a);
		return 0;
	case WORDS:
		return words(argv, a, s->number) && words(envp, b, s->flags) ? 0 : -E2BIG;
	case FIND:
		return find(argv[0], envp);
	case PASS:
		return pass(s->number);
	case SEAL: // nothing but the standard streams reaches the next program
		return S3(close_range, 3, ~0U, 4 /* CLOSE_RANGE_CLOEXEC */);
	case EXECUTE:
		return S3(execve, *a ? a : found, argv, envp);
	}
	return -ENOSYS;
}

__attribute__((used)) void begin(u64 *stack)
{
	u64 fd = 0, size = 0;
	struct head *head = (struct head *)list;
	const char *name = stack[0] > 1 ? (const char *)stack[2] : "", *at = name;
	for (; *at >= '0' && *at <= '9'; at++)
		fd = fd * 10 + *at - '0';
	if (*at)
		fd = S4(openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC, 0);
	for (long n = 1; size < MOST && n > 0; size += n)
		if ((n = S4(pread64, fd, list + size, MOST - size, size)) < 0)
			break;
	if (size < sizeof *head || head->magic != MAGIC || sizeof *head + head->steps * sizeof(struct step) > size)
		S1(exit_group, 125);
	for (u32 i = 0; i < head->steps; i++) {
		long r = carry((struct step *)(head + 1) + i);
		if (r < 0) {
			report(head->first + i, -r);
			S1(exit_group, 125);
		}
	}
	S1(exit_group, 125);
}

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall begin\n\thlt\n");
#elif defined(__aarch64__)
__asm__(".globl _start\n_start:\n\tmov x29, #0\n\tmov x0, sp\n\tbl begin\n\tbrk #0\n");
#endif
