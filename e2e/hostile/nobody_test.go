package hostile

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// nobodysEnv makes this test binary a process of the user nobody on a machine where Weir runs; see prey. It has no capability and no group.
const nobodysEnv = "WEIR_TEST_NOBODY"

// prey is what nobody is after, as JSON in the environment.
type prey struct {
	Do                   string // "attempts", "squat" a port, or "inside" a user namespace of its own
	Instance             string
	Run, Root, Bin       string
	PID, Function        int    // processes of the daemon and of a function
	API, Agents, Fabric  string // addresses of the TCP ports
	Secret, Token        string // what has not to be found, the beginning of the token's file
	Bridge               string
	Namespace, Container string // a function's network namespace and its log
}

// tried is what came of one attempt. Pause: the test has to look, and to answer with a line.
type attempted struct {
	Name, Stopped string
	Passed        bool
	Pause         bool
}

func tell(a attempted) {
	b, _ := json.Marshal(a)
	fmt.Println(string(b))
}

var answers = bufio.NewReader(os.Stdin)

// pause lets the test look at what an attempt has done so far.
func pause(name string) {
	tell(attempted{Name: name, Pause: true})
	_, _ = answers.ReadString('\n')
}

// beNobody is the process's life as nobody.
func beNobody(text string) error {
	var p prey
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return err
	}
	if p.Do == "inside" {
		return inside()
	}
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setresgid(65534, 65534, 65534), syscall.Setresuid(65534, 65534, 65534)); err != nil {
		return err
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil || !strings.Contains(string(status), "CapEff:\t0000000000000000") {
		return fmt.Errorf("nobody has capabilities: %s %w", status, err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); err != nil {
		return err
	}
	switch p.Do {
	case "squat":
		return squat(p)
	case "attempts":
		for _, a := range localAttempts() {
			if err := a.do(p); err != nil {
				tell(attempted{Name: a.name, Stopped: err.Error()})
			} else {
				tell(attempted{Name: a.name, Passed: true})
			}
		}
		return nil
	}
	return fmt.Errorf("nobody does not know %q", p.Do)
}

// squat takes the API's port and says what comes there.
func squat(p prey) error {
	l, err := net.Listen("tcp", p.API)
	if err != nil {
		return err
	}
	defer l.Close()
	var mu sync.Mutex
	var got []byte
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b := make([]byte, 4096)
			n, _ := c.Read(b)
			mu.Lock()
			got = append(got, b[:n]...)
			mu.Unlock()
			c.Close()
		}
	}()
	pause("squat")
	mu.Lock()
	defer mu.Unlock()
	tell(attempted{Name: "what came to the port that was taken", Stopped: string(got)})
	return nil
}

// localAttempt has failed when it returns an error: what stopped it.
type localAttempt struct {
	name string
	do   func(p prey) error
}

func localAttempts() []localAttempt {
	read := func(path func(p prey) string) func(prey) error {
		return func(p prey) error { return readable(path(p)) }
	}
	below := func(kind func(p prey) string, parts ...string) func(p prey) string {
		return func(p prey) string { return filepath.Join(append([]string{kind(p)}, parts...)...) }
	}
	root, run := func(p prey) string { return p.Root }, func(p prey) string { return p.Run }
	daemons := func(file string) func(p prey) string {
		return func(p prey) string { return fmt.Sprintf("/proc/%d/%s", p.PID, file) }
	}
	functions := func(file string) func(p prey) string {
		return func(p prey) string { return fmt.Sprintf("/proc/%d/%s", p.Function, file) }
	}
	get := func(path string, header ...string) func(prey) error {
		return func(p prey) error { return ask(p, "GET", path, "", header...) }
	}
	return []localAttempt{
		{"list the state folder", read(root)},
		{"read the token", read(below(root, "token"))},
		{"read the key of secrets", read(below(root, "secrets.key"))},
		{"read the tunnels' key", read(below(root, "tunnel.key"))},
		{"read the store", read(below(root, "etcd", "member", "snap", "db"))},
		{"read the audit log", read(below(root, "audit.log"))},
		{"append to the audit log", func(p prey) error { return writable(filepath.Join(p.Root, "audit.log")) }},
		{"read the daemon's log", read(below(root, "weir.log"))},
		{"read a function's log", read(func(p prey) string { return p.Container })},
		{"read a file below the run folder", readsAny},
		{"find a secret in what can be read of Weir", findsSecret},
		{"list functions' folders", read(below(run, "functions"))},
		{"list the runtime's state", read(below(run, "native"))},
		{"list secrets' folder", read(below(run, "secrets"))},
		{"write into the run folder", func(p prey) error { return os.WriteFile(filepath.Join(p.Run, "x"), nil, 0o600) }},
		{"take the name of another instance", func(p prey) error { return os.Mkdir(filepath.Join(filepath.Dir(p.Run), "squatted"), 0o700) }},
		{"lay a link in the way of an instance to come", func(p prey) error { return os.Symlink("/etc/passwd", filepath.Join(filepath.Dir(p.Run), "linked")) }},
		{"lock Weir's lock file", func(p prey) error {
			f, err := os.Open(filepath.Join(p.Run, "lock"))
			if err != nil {
				return err
			}
			return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		}},
		{"watch the state folder (inotify)", watches(root)},
		{"watch functions' folders (inotify)", watches(below(run, "functions"))},
		{"files of Weir in /tmp, /var/tmp, /dev/shm", watchesTemporary},
		{"replace the program", func(p prey) error { return writable(p.Bin) }},

		{"open the API's socket", dials(below(run, "api.sock"))},
		{"open any Unix socket of this machine's Weir", dialsAny},
		{"open an abstract socket", dialsAbstract},

		{"read the daemon's environment", read(daemons("environ"))},
		{"list the daemon's descriptors", read(daemons("fd"))},
		{"read the daemon's memory", read(daemons("mem"))},
		{"read the daemon's map of memory", func(p prey) error { return readable(daemons("maps")(p)) }},
		{"go through the daemon's root", read(daemons("root/"))},
		{"find a secret in a command line", findsInCommandLines},
		{"trace the daemon (ptrace)", func(p prey) error { return unix.PtraceAttach(p.PID) }},
		{"read the daemon's memory (process_vm_readv)", readsMemory},
		{"take a descriptor of the daemon (pidfd_getfd)", func(p prey) error {
			fd, err := unix.PidfdOpen(p.PID, 0)
			if err != nil {
				return err
			}
			_, err = unix.PidfdGetfd(fd, 3, 0)
			return err
		}},
		{"end the daemon (SIGKILL)", func(p prey) error { return unix.Kill(p.PID, unix.SIGKILL) }},
		{"stop the daemon (SIGSTOP)", func(p prey) error { return unix.Kill(p.PID, unix.SIGSTOP) }},
		{"starve the daemon of descriptors (prlimit)", func(p prey) error {
			return unix.Prlimit(p.PID, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: 3}, nil)
		}},
		{"put the daemon on one processor", func(p prey) error {
			var set unix.CPUSet
			set.Set(0)
			return unix.SchedSetaffinity(p.PID, &set)
		}},
		{"slow the daemon down (setpriority)", func(p prey) error { return unix.Setpriority(unix.PRIO_PROCESS, p.PID, 19) }},
		{"let the daemon die first (oom_score_adj)", func(p prey) error { return os.WriteFile(daemons("oom_score_adj")(p), []byte("1000"), 0) }},
		{"end a function (SIGKILL)", func(p prey) error { return unix.Kill(p.Function, unix.SIGKILL) }},
		{"trace a function (ptrace)", func(p prey) error { return unix.PtraceAttach(p.Function) }},
		{"read a function's environment", read(functions("environ"))},
		{"go through a function's root", read(functions("root/"))},
		{"read a function's secret through its root", read(functions("root/run/secrets"))},
		{"enter a function's network namespace by its process", enters(functions("ns/net"))},
		{"enter a function's user namespace by its process", enters(functions("ns/user"))},
		{"enter a function's network namespace by its path", enters(func(p prey) string { return p.Namespace })},
		{"become root in a user namespace, and enter Weir's network namespace", intoUserNamespace},
		{"end functions by their cgroup", killsCgroup},

		{"open a packet socket", func(prey) error { return opens(unix.AF_PACKET, unix.SOCK_RAW, 0) }},
		{"open a raw socket", func(prey) error { return opens(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP) }},
		{"delete the bridge (netlink)", func(p prey) error {
			l, err := netlink.LinkByName(p.Bridge)
			if err != nil {
				return err
			}
			return netlink.LinkDel(l)
		}},
		{"make a link (netlink)", func(prey) error {
			return netlink.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "evil"}})
		}},
		{"take a port from the bridge (netlink)", func(p prey) error {
			links, err := netlink.LinkList()
			if err != nil {
				return err
			}
			for _, l := range links {
				if l.Attrs().MasterIndex != 0 {
					return netlink.LinkSetNoMaster(l)
				}
			}
			return errors.New("nothing to take")
		}},
		{"open a pinned map (bpf)", func(p prey) error { return opensPin(filepath.Join(p.Run, "bpf")) }},
		{"take a BPF map by its number", func(prey) error { return bpfByID(unix.BPF_MAP_GET_FD_BY_ID) }},
		{"take a BPF program by its number", func(prey) error { return bpfByID(unix.BPF_PROG_GET_FD_BY_ID) }},

		{"read over TCP without a token", get("/v1/functions")},
		{"read with an empty token", get("/v1/functions", "Authorization: Bearer ")},
		{"read with a guessed token", get("/v1/functions", "Authorization: Bearer "+strings.Repeat("A", 43))},
		{"read with a password", get("/v1/functions", "Authorization: Basic cm9vdDpyb290")},
		{"read with a token in the address", get("/v1/functions?token=x&access_token=x")},
		{"read as a proxy that names a user", get("/v1/functions", "X-Remote-User: root", "X-Forwarded-User: root", "X-Forwarded-For: unix")},
		{"read by a path that looks free", get("/healthz/../v1/functions")},
		{"read by a path that is encoded", get("/healthz%2f..%2fv1%2ffunctions")},
		{"read by a path with two slashes", get("//v1/functions")},
		{"read by an absolute address", get("http://localhost/v1/functions")},
		{"apply without a token", func(p prey) error {
			return ask(p, "POST", "/v1/apply", `{"document": {"functions": {"evil": {"image": "wire"}}}}`, "Content-Type: application/json")
		}},
		{"run a process in a function without a token", func(p prey) error {
			return ask(p, "POST", "/v1/functions/w/exec?arg=id", "", "Upgrade: weir-exec", "Connection: Upgrade")
		}},
		{"a page in a browser, whose name leads here (DNS rebinding)", get("/v1/functions", "Host: evil.example", "Origin: http://evil.example")},
		{"a page in a browser asks whether it may (CORS)", crossOrigin},
		{"a form in a browser applies (CSRF)", func(p prey) error {
			return ask(p, "POST", "/v1/apply", `{"document": {}}`, "Content-Type: text/plain", "Origin: http://evil.example", "Cookie: token=x")
		}},
		{"HTTP/2 without TLS", func(p prey) error { return raw2(p.API, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") }},
		{"two requests in one (smuggling)", func(p prey) error {
			return raw2(p.API, "POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/functions HTTP/1.1\r\nHost: x\r\n\r\n")
		}},
		{"headers without an end", endlessHeaders},
		{"a body without an end", endlessBody},
		{"a line of the audit log that tells lies", func(p prey) error {
			return ask(p, "GET", "/v1/functions/%0a%7b%22who%22:%22forged%22%7d", "", "Authorization: Bearer forged.%0aforged")
		}},
		{"fill the audit log with refusals", refusals},
		{"thousands of connections to the API, idle and slow", crowd},
		{"an agent without a certificate", func(p prey) error { return strangeTLS(p.Agents, "GET /v1/functions HTTP/1.1\r\nHost: x\r\n\r\n") }},
		{"join with a made-up token", func(p prey) error {
			body := `{"token": "x", "host": "evil", "request": ""}`
			return strangeTLS(p.Agents, fmt.Sprintf("POST /v1/join HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
		}},
		{"OpenFlow without TLS", func(p prey) error { return silent(p.Fabric, []byte{4, 0, 0, 8, 0, 0, 0, 1}) }},
		{"OpenFlow without a certificate", func(p prey) error { return strangeTLS(p.Fabric, string([]byte{4, 0, 0, 8, 0, 0, 0, 1})) }},
	}
}

// readable tells what keeps a file or a folder from being read.
func readable(path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() || strings.HasSuffix(path, "/") {
		_, err := os.ReadDir(path)
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if strings.HasSuffix(path, "/mem") {
		_, err = f.ReadAt(make([]byte, 1), 0x400000)
		return err
	}
	_, err = io.ReadAll(io.LimitReader(f, 1))
	return err
}

func writable(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		f.Close()
	}
	return err
}

// reached are the files and sockets below a folder to which nobody gets.
func reached(dir string) (files, sockets []string) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		switch {
		case d.Type()&fs.ModeSocket != 0:
			sockets = append(sockets, path)
		case d.Type().IsRegular() && readable(path) == nil:
			files = append(files, path)
		}
		return nil
	})
	return files, sockets
}

func readsAny(p prey) error {
	files, _ := reached(p.Run)
	more, _ := reached(p.Root)
	if files = append(files, more...); len(files) > 0 {
		tell(attempted{Name: "files that nobody reads", Stopped: strings.Join(files, " ")})
		return nil
	}
	return errors.New("no file can be opened")
}

func findsSecret(p prey) error {
	for _, dir := range []string{p.Run, p.Root, fmt.Sprintf("/proc/%d", p.PID), fmt.Sprintf("/proc/%d", p.Function)} {
		files, _ := reached(dir)
		for _, f := range files {
			in, err := os.Open(f)
			if err != nil {
				continue
			}
			b, _ := io.ReadAll(io.LimitReader(in, 1<<20))
			in.Close()
			if strings.Contains(string(b), p.Secret) || strings.Contains(string(b), p.Token) {
				return nil
			}
		}
	}
	return errors.New("in none of the files that can be read")
}

func findsInCommandLines(p prey) error {
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, f := range all {
		if b, err := os.ReadFile(f); err == nil && (strings.Contains(string(b), p.Secret) || strings.Contains(string(b), p.Token)) {
			return nil
		}
	}
	return errors.New("in none of them")
}

func watches(path func(p prey) string) func(p prey) error {
	return func(p prey) error {
		fd, err := unix.InotifyInit1(0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = unix.InotifyAddWatch(fd, path(p), unix.IN_ALL_EVENTS)
		return err
	}
}

// watchesTemporary looks whether Weir makes files where everybody may, while the test applies something: names that can be known before can be taken.
func watchesTemporary(p prey) error {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
		if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MOVED_TO); err != nil {
			return err
		}
	}
	pause("apply")
	b := make([]byte, 1<<20)
	n, err := unix.Read(fd, b)
	if errors.Is(err, unix.EAGAIN) {
		return errors.New("it makes none there")
	}
	if err != nil {
		return err
	}
	if strings.Contains(string(b[:n]), p.Instance) {
		return nil
	}
	return errors.New("it makes none there")
}

func dials(path func(p prey) string) func(p prey) error {
	return func(p prey) error { return dialUnix(path(p)) }
}

// dialUnix tells what keeps a socket closed; a stream that ends at once is closed.
func dialUnix(path string) error {
	for _, kind := range []string{"unix", "unixgram", "unixpacket"} {
		c, err := net.DialTimeout(kind, path, time.Second)
		if err == nil {
			c.Close()
			return nil
		}
		if !errors.Is(err, unix.EPROTOTYPE) {
			return err
		}
	}
	return errors.New("no such kind of socket")
}

// listening are the Unix sockets of this network namespace, which anybody can list.
func listening() ([]string, error) {
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	var all []string
	for line := range strings.Lines(string(b)) {
		if c := strings.Fields(line); len(c) > 7 {
			all = append(all, c[7])
		}
	}
	return all, nil
}

func dialsAny(p prey) error {
	paths, err := listening()
	if err != nil {
		return err
	}
	_, below := reached(p.Run)
	paths = append(paths, below...)
	if len(paths) == 0 {
		return nil // then this test sees nothing
	}
	for _, path := range paths {
		if path[0] != '@' && dialUnix(path) == nil {
			tell(attempted{Name: "a socket that nobody opens", Stopped: path})
			return nil
		}
	}
	return fmt.Errorf("%d sockets: permission denied", len(paths))
}

func dialsAbstract(prey) error {
	paths, err := listening()
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(paths, func(s string) bool { return s[0] == '@' }); i >= 0 {
		tell(attempted{Name: "an abstract socket", Stopped: paths[i]})
		return nil
	}
	return errors.New("there is none")
}

func readsMemory(p prey) error {
	b := make([]byte, 8)
	local := []unix.Iovec{{Base: &b[0], Len: 8}}
	_, err := unix.ProcessVMReadv(p.PID, local, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
	return err
}

func enters(path func(p prey) string) func(p prey) error {
	return func(p prey) error {
		f, err := os.Open(path(p))
		if err != nil {
			return err
		}
		defer f.Close()
		return unix.Setns(int(f.Fd()), 0)
	}
}

// intoUserNamespace is root in a user namespace of its own, and wants back where Weir's links are.
func intoUserNamespace(prey) error {
	c := exec.Command("/proc/self/exe")
	c.Env = []string{nobodysEnv + `={"Do": "inside"}`}
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65534, Size: 1}}, GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65534, Size: 1}}}
	back, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return err
	}
	defer back.Close()
	c.ExtraFiles = []*os.File{back}
	out, err := c.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if text := strings.TrimSpace(string(out)); text != "in" {
		return errors.New(text)
	}
	return nil
}

func inside() error {
	err := unix.Setns(3, unix.CLONE_NEWNET)
	if err == nil {
		fmt.Println("in")
		return nil
	}
	// Or a link is made there from here (IFLA_NET_NS_FD, as in C2).
	err2 := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "evil", Namespace: netlink.NsFd(3)}})
	if err2 == nil {
		fmt.Println("in")
		return nil
	}
	fmt.Printf("setns: %v; a link into it: %v\n", err, err2)
	return nil
}

func killsCgroup(p prey) error {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.Function))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for _, file := range []string{"cgroup.kill", "cgroup.procs", "tasks"} {
			path := filepath.Join("/sys/fs/cgroup", strings.TrimPrefix(parts[1], "name="), parts[2], file)
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err == nil {
				f.Close()
				return nil
			}
			if errors.Is(err, fs.ErrPermission) {
				return err
			}
		}
	}
	return errors.New("no cgroup is seen")
}

func opens(family, kind, protocol int) error {
	fd, err := unix.Socket(family, kind, protocol)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// bpfCall is bpf(2), with room for what these commands take.
func bpfCall(command uintptr, attr *[4]uint64) error {
	if _, _, e := unix.Syscall(unix.SYS_BPF, command, uintptr(unsafe.Pointer(attr)), unsafe.Sizeof(*attr)); e != 0 {
		return e
	}
	return nil
}

func opensPin(dir string) error {
	path, err := unix.BytePtrFromString(filepath.Join(dir, "any"))
	if err != nil {
		return err
	}
	err = bpfCall(unix.BPF_OBJ_GET, &[4]uint64{uint64(uintptr(unsafe.Pointer(path)))})
	if _, there := os.Lstat(dir); errors.Is(err, unix.ENOENT) && there == nil { // it got into the folder
		return nil
	}
	return err
}

func bpfByID(command uintptr) error {
	for id := range uint64(10_000) {
		if err := bpfCall(command, &[4]uint64{id}); !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return errors.New("none is found")
}

// ask sends one request over TCP as it is written; only an answer of 2xx means that it went through.
func ask(p prey, method, path, body string, header ...string) error {
	head := fmt.Sprintf("%s %s HTTP/1.1\r\nContent-Length: %d\r\n", method, path, len(body))
	if !slices.ContainsFunc(header, func(h string) bool { return strings.HasPrefix(h, "Host:") }) {
		head += "Host: " + p.API + "\r\n"
	}
	for _, h := range header {
		head += h + "\r\n"
	}
	return raw2(p.API, head+"\r\n"+body)
}

// raw2 sends bytes and reads the answers to them: two of them at most.
func raw2(address, text string) error {
	c, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	return answered(c)
}

func answered(c io.Reader) error {
	var said []string
	in := bufio.NewReader(c)
	for range 2 {
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			break
		}
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		if resp.StatusCode < 300 && !strings.HasPrefix(string(b), `{"status"`) || resp.StatusCode == http.StatusSwitchingProtocols {
			return nil
		}
		if resp.Header.Get("Access-Control-Allow-Origin") != "" {
			return nil
		}
		said = append(said, resp.Status)
	}
	if len(said) == 0 {
		return errors.New("the connection is closed")
	}
	return errors.New(strings.Join(said, ", "))
}

func crossOrigin(p prey) error {
	return ask(p, "OPTIONS", "/v1/apply", "", "Origin: http://evil.example", "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization")
}

// endlessHeaders goes through if the daemon takes more of them than buffers on the way hold.
func endlessHeaders(p prey) error {
	return endless(p, "GET /healthz HTTP/1.1\r\nHost: x\r\n", "X-A: "+strings.Repeat("a", 1000)+"\r\n", 64<<20)
}

func endlessBody(p prey) error {
	return endless(p, "POST /v1/apply HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n", "3e8\r\n"+strings.Repeat(" ", 1000)+"\r\n", 64<<20)
}

func endless(p prey, begin, more string, enough int) error {
	c, err := net.DialTimeout("tcp", p.API, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	said := make(chan error, 1)
	go func() { said <- answered(c) }()
	if _, err := io.WriteString(c, begin); err != nil {
		return err
	}
	for sent := 0; sent < enough; sent += len(more) {
		if _, err := io.WriteString(c, more); err != nil {
			if s := <-said; s != nil {
				return fmt.Errorf("%w after %d KiB", s, sent>>10)
			}
			return nil
		}
	}
	return nil
}

// refusals makes many requests that are refused; the test looks at the log's size.
func refusals(p prey) error {
	for range 1000 {
		if err := ask(p, "GET", "/v1/functions", ""); err == nil {
			return nil
		}
	}
	pause("refusals")
	return errors.New("they are counted, not written each")
}

// crowdSize is how many connections nobody holds open; those that end are opened again.
const crowdSize = 2000

func crowd(p prey) error {
	ctx, end := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	made := 0
	full := make(chan bool)
	wg.Go(func() {
		for tick := time.NewTicker(time.Millisecond); ctx.Err() == nil; <-tick.C {
			c, err := net.DialTimeout("tcp", p.API, time.Second)
			if err != nil {
				continue
			}
			mu.Lock()
			open[c] = true
			if made++; made == crowdSize {
				close(full)
			}
			n := len(open)
			mu.Unlock()
			switch made % 3 {
			case 1:
				_, _ = io.WriteString(c, "GET /v1/functions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
			case 2:
				_, _ = io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
			}
			if n >= crowdSize { // for ever new ones
				mu.Lock()
				for old := range open {
					old.Close()
					delete(open, old)
					break
				}
				mu.Unlock()
			}
		}
	})
	<-full
	pause("crowd")
	end()
	wg.Wait()
	for c := range open {
		c.Close()
	}
	return fmt.Errorf("%d were made: the operator was answered all the time", made)
}

// strangeTLS speaks TLS without a certificate, and says something.
func strangeTLS(address, text string) error {
	c, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	t := tls.Client(c, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // an enemy does not care
	if _, err := io.WriteString(t, text); err != nil {
		return err
	}
	if strings.Contains(text, "HTTP/1.1") {
		return answered(t)
	}
	return hears(t)
}

// silent sends something and wants an answer other than the end.
func silent(address string, text []byte) error {
	c, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Write(text); err != nil {
		return err
	}
	return hears(c)
}

func hears(c io.Reader) error {
	b := make([]byte, 64)
	n, err := c.Read(b)
	if err != nil {
		return err
	}
	if n > 0 && b[0] == 21 {
		return errors.New("TLS alert")
	}
	return nil
}
