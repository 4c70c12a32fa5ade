//go:build ignore

// weir-event is for functions that are scripts: it raises events, and tells numbers. Images that Weir builds have it as /usr/bin/weir-event.
//
// It speaks HTTP/1.1 with the platform's sockets, a connection for each event. There is no libc, no allocation, one thread: a few KB, so that it costs an image
// nothing. What it reads and sends is bounded by its buffers, and how long it waits by PATIENCE and TRIES.
//
// Built by `go generate`, see event.go; the committed binaries are what images get.

typedef unsigned long u64;
typedef long s64;
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

enum { EVENT_MAX = 8 << 10, NUMBERS_MAX = 64 << 10 }; // bytes that the platform takes
enum { PATIENCE = 2 };                                // seconds for the platform to take a request, and to answer
enum { TRIES = 11, PAUSE_NS = 100 * 1000 * 1000 };    // of an event: the platform takes ten a second after the first twenty
enum { ALL = 0, SOME = 1, NONE = 2 };                 // exit codes

enum { AF_UNIX = 1, SOCK_STREAM = 1, SOL_SOCKET = 1, SO_RCVTIMEO = 20, SO_SNDTIMEO = 21, MSG_NOSIGNAL = 0x4000 };
enum { ENOENT = 2, EINTR = 4, EAGAIN = 11, EACCES = 13, ECONNREFUSED = 111 };

#if defined(__x86_64__)
enum { NR_READ = 0, NR_WRITE = 1, NR_CLOSE = 3, NR_NANOSLEEP = 35, NR_SOCKET = 41, NR_CONNECT = 42, NR_SENDTO = 44, NR_SETSOCKOPT = 54, NR_EXIT = 231 };
static s64 call(s64 n, u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
	s64 r;
	register u64 r10 __asm__("r10") = d;
	register u64 r8 __asm__("r8") = e;
	register u64 r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return r;
}
__asm__(".globl _start\n_start: xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call begin\n hlt\n");
#elif defined(__aarch64__)
enum { NR_READ = 63, NR_WRITE = 64, NR_CLOSE = 57, NR_NANOSLEEP = 101, NR_SOCKET = 198, NR_CONNECT = 203, NR_SENDTO = 206, NR_SETSOCKOPT = 208, NR_EXIT = 94 };
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
__asm__(".globl _start\n_start: mov x29, #0\n mov x0, sp\n bl begin\n brk #1\n");
#else
#error "no system calls known for this machine"
#endif

static const char usage[] =
	"Usage: weir-event [-socket FILE] SEVERITY REASON MESSAGE...\n"
	"       ... | weir-event [-socket FILE]\n"
	"       ... | weir-event [-socket FILE] -numbers\n"
	"\n"
	"Raise an event (weir events): SEVERITY is info, warning or error, REASON one word that Weir does not use itself, MESSAGE a text. Without them each line\n"
	"of the input is an event, in the same order. With -numbers the input is what the function tells of itself (weir describe function), in Prometheus's\n"
	"text format, at most 64 KiB.\n"
	"\n"
	"  weir-event warning PortBlocked dropped 5 packets\n"
	"  weir-event error BackendDown \"10.9.0.2:80: no answer for 3 s\"\n"
	"  printf 'info Started ready\\nwarning CacheFull 512 entries\\n' | weir-event\n"
	"  printf 'dropped_packets_total %s\\n' \"$n\" | weir-event -numbers\n"
	"\n"
	"An event has at most 8 KiB. The platform takes twenty at once and then ten a second: weir-event tries again for a second, and gives up.\n"
	"The sockets are /run/weir/events.sock and /run/weir/metrics.sock. Prints nothing but what went wrong. Exit code 0: all were taken; 1: some were refused;\n"
	"2: none could be told.\n";

struct text {
	const u8 *at;
	u64 n;
};

#define T(s) (struct text){(const u8 *)(s), sizeof(s) - 1}

static struct text whole(const char *s)
{
	u64 n = 0;
	while (s[n])
		n++;
	return (struct text){(const u8 *)s, n};
}

static int same(struct text a, const char *s)
{
	u64 i = 0;
	while (i < a.n && s[i] && a.at[i] == (u8)s[i])
		i++;
	return i == a.n && !s[i];
}

static void print(u64 to, struct text t) { call(NR_WRITE, to, (u64)t.at, t.n, 0, 0, 0); }

// Says what went wrong, in one line.
static void complain(struct text what, struct text why)
{
	print(2, T("weir-event: "));
	print(2, what);
	print(2, T(": "));
	print(2, why);
	print(2, T("\n"));
}

__attribute__((noreturn)) static void leave(u64 code)
{
	for (;;)
		call(NR_EXIT, code, 0, 0, 0, 0, 0);
}

// What is sent. The head's room is before the body, whose length it tells.
static u8 request[256 + NUMBERS_MAX];
static u8 *const body = request + 256;
static u64 filled; // bytes of the body
static int full;   // more than there may be

static void add(u8 c, u64 most)
{
	if (filled < most)
		body[filled++] = c;
	else
		full = 1;
}

static void add_all(struct text t, u64 most)
{
	for (u64 i = 0; i < t.n; i++)
		add(t.at[i], most);
}

// Adds a JSON string.
static void add_string(struct text t)
{
	static const char hex[] = "0123456789abcdef";
	add('"', EVENT_MAX);
	for (u64 i = 0; i < t.n; i++) {
		u8 c = t.at[i];
		if (c < ' ') {
			add_all(T("\\u00"), EVENT_MAX);
			add((u8)hex[c >> 4], EVENT_MAX);
			c = (u8)hex[c & 15];
		} else if (c == '"' || c == '\\') {
			add('\\', EVENT_MAX);
		}
		add(c, EVENT_MAX);
	}
	add('"', EVENT_MAX);
}

static struct text why(s64 error)
{
	switch (-error) {
	case ENOENT:
		return T("no such file: the platform does not listen there");
	case EACCES:
		return T("permission denied");
	case EAGAIN:
		return T("the platform does not answer");
	case ECONNREFUSED:
		return T("connection refused: the platform does not listen");
	}
	return T("the connection failed");
}

static struct {
	u16 family;
	u8 path[108];
} address = {AF_UNIX, {0}};
static struct text socket_file;

static s64 open_socket(void)
{
	static const s64 patience[2] = {PATIENCE, 0};
	s64 fd = call(NR_SOCKET, AF_UNIX, SOCK_STREAM, 0, 0, 0, 0);
	if (fd < 0)
		return fd;
	call(NR_SETSOCKOPT, (u64)fd, SOL_SOCKET, SO_RCVTIMEO, (u64)patience, sizeof(patience), 0);
	call(NR_SETSOCKOPT, (u64)fd, SOL_SOCKET, SO_SNDTIMEO, (u64)patience, sizeof(patience), 0);
	s64 bad = call(NR_CONNECT, (u64)fd, (u64)&address, 2 + socket_file.n + 1, 0, 0, 0);
	if (bad < 0) {
		call(NR_CLOSE, (u64)fd, 0, 0, 0, 0, 0);
		return bad;
	}
	return fd;
}

static u8 answer[1024];

// Sends the body once. Returns the status of the answer, or an error; text is what the answer says.
static s64 post_once(struct text kind, struct text *text)
{
	u8 head[256], digits[20];
	u64 n = 0, d = 0;
	struct text parts[] = {T("POST / HTTP/1.1\r\nHost: weir\r\nConnection: close\r\nContent-Type: "), kind, T("\r\nContent-Length: ")};
	for (u64 p = 0; p < 3; p++)
		for (u64 i = 0; i < parts[p].n; i++)
			head[n++] = parts[p].at[i];
	for (u64 rest = filled; d == 0 || rest; rest /= 10)
		digits[d++] = (u8)('0' + rest % 10);
	while (d)
		head[n++] = digits[--d];
	for (u64 i = 0; i < 4; i++)
		head[n++] = (u8) "\r\n\r\n"[i];
	u8 *at = body - n, *end = body + filled;
	for (u64 i = 0; i < n; i++)
		((volatile u8 *)at)[i] = head[i]; // no call of memcpy, which there is not

	s64 fd = open_socket();
	if (fd < 0)
		return fd;
	s64 got = 0;
	while (at < end && (got >= 0 || got == -EINTR)) {
		got = call(NR_SENDTO, (u64)fd, (u64)at, (u64)(end - at), MSG_NOSIGNAL, 0, 0);
		if (got > 0)
			at += got;
	}
	// Who refuses a request may answer before all of it is sent.
	u64 length = 0;
	for (got = 1; got > 0 && length < sizeof(answer);) {
		got = call(NR_READ, (u64)fd, (u64)(answer + length), sizeof(answer) - length, 0, 0, 0);
		if (got > 0)
			length += (u64)got;
		else if (got == -EINTR)
			got = 1;
	}
	call(NR_CLOSE, (u64)fd, 0, 0, 0, 0, 0);
	if (length < 12 || answer[0] != 'H' || answer[8] != ' ')
		return got < 0 ? got : -EAGAIN;
	u64 from = 12;
	while (from + 4 <= length && !(answer[from] == '\r' && answer[from + 1] == '\n' && answer[from + 2] == '\r' && answer[from + 3] == '\n'))
		from++;
	from = from + 4 <= length ? from + 4 : length;
	u64 to = from;
	while (to < length && answer[to] != '\n' && answer[to] != '\r')
		to++;
	*text = (struct text){answer + from, to - from};
	return (answer[9] - '0') * 100 + (answer[10] - '0') * 10 + (answer[11] - '0');
}

// Sends the body, again if the platform has no time for it now. Returns an exit code.
static int post(struct text kind, struct text what)
{
	static const s64 pause[2] = {0, PAUSE_NS};
	struct text text = {0, 0};
	s64 status = 0;
	for (int i = 0; i < TRIES; i++) {
		if (i)
			call(NR_NANOSLEEP, (u64)pause, 0, 0, 0, 0, 0);
		status = post_once(kind, &text);
		if (status != 429)
			break;
	}
	if (status < 0) {
		complain(socket_file, why(status));
		return NONE;
	}
	if (status >= 300) {
		complain(what, text);
		return SOME;
	}
	return ALL;
}

static int event(struct text severity, struct text reason, struct text message)
{
	filled = 0;
	full = 0;
	add_all(T("{\"severity\": "), EVENT_MAX);
	add_string(severity);
	add_all(T(", \"reason\": "), EVENT_MAX);
	add_string(reason);
	add_all(T(", \"message\": "), EVENT_MAX);
	add_string(message);
	add('}', EVENT_MAX);
	if (full) {
		complain(T("event"), T("more than 8 KiB"));
		return SOME;
	}
	return post(T("application/json"), T("event refused"));
}

static int blank(u8 c) { return c == ' ' || c == '\t' || c == '\r'; }

// Cuts the first word off a line.
static struct text word(struct text *line)
{
	while (line->n && blank(line->at[0]))
		line->at++, line->n--;
	struct text w = {line->at, 0};
	while (line->n && !blank(line->at[0]))
		line->at++, line->n--, w.n++;
	while (line->n && blank(line->at[0]))
		line->at++, line->n--;
	return w;
}

static int event_of_line(struct text line)
{
	while (line.n && blank(line.at[line.n - 1]))
		line.n--;
	struct text severity = word(&line);
	if (!severity.n)
		return ALL;
	struct text reason = word(&line);
	if (!line.n) {
		complain(severity, T("want a line SEVERITY REASON MESSAGE, as: warning PortBlocked dropped 5 packets"));
		return SOME;
	}
	return event(severity, reason, line);
}

// Raises an event for each line of the input.
static int events_of_input(void)
{
	static u8 line[EVENT_MAX], chunk[4096];
	u64 n = 0;
	int long_line = 0, code = ALL;
	for (;;) {
		s64 got = call(NR_READ, 0, (u64)chunk, sizeof(chunk), 0, 0, 0);
		if (got == -EINTR)
			continue;
		if (got < 0) {
			complain(T("input"), T("it cannot be read"));
			return NONE;
		}
		for (s64 i = 0; i < got || (!got && !i); i++) {
			if (got && chunk[i] != '\n') {
				if (n < sizeof(line))
					line[n++] = chunk[i];
				else
					long_line = 1;
				continue;
			}
			int one = SOME;
			if (long_line)
				complain(T("event"), T("a line of more than 8 KiB"));
			else
				one = event_of_line((struct text){line, n});
			if (one == NONE)
				return NONE;
			code |= one;
			n = 0;
			long_line = 0;
		}
		if (!got)
			return code;
	}
}

static int numbers_of_input(void)
{
	static u8 chunk[4096];
	filled = 0;
	for (;;) {
		s64 got = call(NR_READ, 0, (u64)chunk, sizeof(chunk), 0, 0, 0);
		if (got == -EINTR)
			continue;
		if (got < 0) {
			complain(T("input"), T("it cannot be read"));
			return NONE;
		}
		if (!got)
			break;
		add_all((struct text){chunk, (u64)got}, NUMBERS_MAX);
		if (full) {
			complain(T("numbers"), T("more than 64 KiB"));
			return SOME;
		}
	}
	return post(T("text/plain; version=0.0.4"), T("numbers refused"));
}

__attribute__((noreturn)) static void misused(struct text what, struct text message)
{
	complain(what, message);
	print(2, T("weir-event -help tells more\n"));
	leave(NONE);
}

// The kernel's stack of a new program: the number of its arguments, and these.
__attribute__((noreturn, used)) void begin(u64 *stack)
{
	static u8 message[EVENT_MAX];
	u64 count = stack[0], i = 1;
	char **arguments = (char **)(stack + 1);
	int numbers = 0;
	for (; i < count && arguments[i][0] == '-'; i++) {
		struct text option = whole(arguments[i]);
		if (option.n > 1 && option.at[1] == '-')
			option.at++, option.n--;
		if (same(option, "-help") || same(option, "-h")) {
			print(1, T(usage));
			leave(ALL);
		} else if (same(option, "-numbers")) {
			numbers = 1;
		} else if (same(option, "-socket") && i + 1 < count) {
			socket_file = whole(arguments[++i]);
		} else {
			misused(option, T("no such option, or it lacks its file"));
		}
	}
	if (!socket_file.n)
		socket_file = numbers ? T("/run/weir/metrics.sock") : T("/run/weir/events.sock");
	if (socket_file.n >= sizeof(address.path))
		misused(socket_file, T("a socket's name has at most 107 bytes"));
	for (u64 j = 0; j < socket_file.n; j++)
		((volatile u8 *)address.path)[j] = socket_file.at[j];
	count -= i;
	arguments += i;
	if (numbers && count)
		misused(whole(arguments[0]), T("numbers come by the input"));
	if (numbers)
		leave((u64)numbers_of_input());
	if (!count)
		leave((u64)events_of_input());
	if (count < 3)
		misused(whole(arguments[0]), T("want SEVERITY REASON MESSAGE, as: weir-event warning PortBlocked dropped 5 packets"));
	u64 n = 0;
	for (u64 a = 2; a < count; a++) {
		struct text part = whole(arguments[a]);
		if (n + 1 + part.n > sizeof(message)) {
			complain(T("event"), T("more than 8 KiB"));
			leave(SOME);
		}
		if (a > 2)
			message[n++] = ' ';
		for (u64 j = 0; j < part.n; j++)
			((volatile u8 *)message)[n++] = part.at[j];
	}
	leave((u64)event(whole(arguments[0]), whole(arguments[1]), (struct text){message, n}));
}
