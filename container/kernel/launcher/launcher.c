//go:build ignore

// The launcher: a program that makes system calls by a list and then is another program, by execve, such as a container's.
//
// The list is made by package launcher (program.go), which knows what each call is for; nothing here decides anything. It is descriptor 4, or the file that
// the first argument names, and is mapped privately, so that a call may write into it. There is no libc, no allocation, one thread.
//
// Built by `go generate`, see launcher.go; the committed binaries are what Weir runs.

typedef unsigned long u64;
typedef long s64;
typedef unsigned int u32;
typedef unsigned char u8;

enum { LIST = 4, STEPS_MAX = 4096 };
enum { CWD = -100, CLOEXEC = 02000000 }; // of openat

// How an argument is meant.
enum { VALUE, ADDRESS, RESULT, WORD }; // WORD: the four bytes at an address, that a former call has written

// What follows a call.
enum { NEVER, POSITIVE, ZERO, REFUSED }; // goto: never, if it returned more than 0, exactly 0, or an error of `spared`

struct step {
	s64 number;     // of the system call; -1: exit with argument 0; -2: exit as the process with id argument 0 did, which is our child
	u64 argument[6];
	u8 kind[6];
	u8 spared[3];   // errors that are no failure
	u8 when;        // to go on at `target`, else at the next step
	u8 pad[2];
	u32 target;
	s64 result;
};

struct program {
	u32 magic, steps, relocations, said; // said: descriptor that failures are written to
	u64 relocation;                      // offset of an array of offsets, of words to which the list's address is to be added
	u64 size;
	struct step step[];
};

#if defined(__x86_64__)
enum { NR_MMAP = 9, NR_WRITE = 1, NR_EXIT = 231, NR_WAIT4 = 61, NR_OPENAT = 257 };
static s64 call(s64 n, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
	s64 r;
	register u64 r10 __asm__("r10") = d;
	register u64 r8 __asm__("r8") = e;
	register u64 r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return r;
}
__asm__(".globl _start\n_start: xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call launch\n hlt\n");
#elif defined(__aarch64__)
enum { NR_MMAP = 222, NR_WRITE = 64, NR_EXIT = 94, NR_WAIT4 = 260, NR_OPENAT = 56 };
static s64 call(s64 n, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
	register u64 x0 __asm__("x0") = a;
	register u64 x1 __asm__("x1") = b;
	register u64 x2 __asm__("x2") = c;
	register u64 x3 __asm__("x3") = d;
	register u64 x4 __asm__("x4") = e;
	register u64 x5 __asm__("x5") = f;
	register s64 x8 __asm__("x8") = n;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return (s64)x0;
}
__asm__(".globl _start\n_start: mov x29, #0\n mov x0, sp\n bl launch\n brk #1\n");
#else
#error "no system calls known for this machine"
#endif

__attribute__((noreturn)) static void leave(s64 code)
{
	for (;;)
		call(NR_EXIT, (u64)code, 0, 0, 0, 0, 0);
}

// Says which step failed and why: a word 3, then step and error in one.
__attribute__((noreturn)) static void fail(u32 said, u32 step, s64 error)
{
	u64 words[2] = {3, (u64)step << 32 | (u32)error};
	call(NR_WRITE, said, (u64)words, sizeof words, 0, 0, 0);
	leave(127);
}

__attribute__((noreturn)) static void leave_as(u64 child)
{
	u32 status = 0;
	s64 r;
	do
		r = call(NR_WAIT4, child, (u64)&status, 0, 0, 0, 0);
	while (r == -4);
	if (r < 0)
		leave(127);
	leave(status & 0x7f ? 128 + (status & 0x7f) : status >> 8 & 0xff);
}

__attribute__((used, noreturn)) void launch(u64 *stack) // the number of arguments, the arguments
{
	s64 list = LIST;
	if (stack[0] > 1 && (list = call(NR_OPENAT, CWD, stack[2], CLOEXEC, 0, 0, 0)) < 0)
		leave(126);
	// The first page tells the size.
	s64 at = call(NR_MMAP, 0, 4096, 3, 2, (u64)list, 0);
	if (at < 0 && at > -4096)
		leave(126);
	struct program *p = (struct program *)at;
	at = call(NR_MMAP, 0, p->size, 3, 2, (u64)list, 0);
	if (at < 0 && at > -4096)
		leave(126);
	p = (struct program *)at;
	if (p->magic != 0x77656972 || p->steps > STEPS_MAX)
		leave(126);
	u64 *words = (u64 *)(at + p->relocation);
	for (u32 i = 0; i < p->relocations; i++)
		*(u64 *)(at + words[i]) += (u64)at;

	for (u32 i = 0; i < p->steps;) {
		struct step *s = &p->step[i];
		u64 a[6];
		for (int k = 0; k < 6; k++)
			a[k] = s->kind[k] == ADDRESS  ? (u64)at + s->argument[k]
			       : s->kind[k] == RESULT ? (u64)p->step[s->argument[k]].result
			       : s->kind[k] == WORD   ? *(u32 *)((u64)at + s->argument[k])
						      : s->argument[k];
		if (s->number == -1)
			leave((s64)a[0]);
		if (s->number == -2)
			leave_as(a[0]);
		do
			s->result = call(s->number, a[0], a[1], a[2], a[3], a[4], a[5]);
		while (s->result == -4); // interrupted
		int refused = 0;
		if (s->result < 0 && s->result > -4096) {
			for (int k = 0; k < 3; k++)
				refused |= s->spared[k] && s->result == -(s64)s->spared[k];
			if (!refused)
				fail(p->said, i, -s->result);
		}
		int jump = (s->when == POSITIVE && s->result > 0) || (s->when == ZERO && s->result == 0) || (s->when == REFUSED && refused);
		i = jump ? s->target : i + 1;
	}
	leave(0);
}
