package web_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/manager/managertest"
	"weir.dev/weir/manager/web"
)

// crowdEnv makes this test binary one that opens connections to an address, and says how many stay open.
const crowdEnv = "WEIR_TEST_CROWD"

const (
	crowdSize = 2000
	nobody    = 65534
)

func TestCrowd(t *testing.T) {
	address := os.Getenv(crowdEnv)
	if address == "" {
		return // a process of the test below, not a test
	}
	if err := syscall.Setuid(nobody); err != nil { // the test's binary is where nobody cannot start it
		t.Fatal(err)
	}
	var open []net.Conn
	for i := range crowdSize {
		c, err := net.DialTimeout("tcp", address, 5*time.Second)
		if err != nil {
			continue
		}
		switch i % 3 {
		case 1: // begins a request, and goes on slowly
			_, _ = fmt.Fprintf(c, "GET /v1/functions HTTP/1.1\r\nHost: x\r\nX-Slow: ")
		case 2: // asks what anybody may, and stays
			_, _ = fmt.Fprintf(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		}
		open = append(open, c)
	}
	fmt.Println("open", len(open))
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test has looked
}

// A local user without the token takes no place of those who have it, however many connections it opens, idle or slow; and soon they are closed.
func TestNobodyLocksTheAPIOut(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("root is needed, to become nobody")
	}
	dir := t.TempDir()
	m := testManager(t)
	socket, tokenFile := filepath.Join(dir, "s"), filepath.Join(dir, "token")
	s, _ := managertest.Serve(t, m, web.ServeOptions{Socket: socket, Listen: "127.0.0.1:0", TokenFile: tokenFile})
	crowd := exec.Command("/proc/self/exe", "-test.run", "^TestCrowd$", "-test.v")
	crowd.Dir = "/"
	crowd.Env = []string{crowdEnv + "=" + s.TCPAddr().String()}
	crowd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := crowd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := crowd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := crowd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { stdin.Close(); _ = crowd.Wait() }()
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "open") {
			t.Log("nobody has", lines.Text())
			break
		}
	}
	if n := web.Strangers(s, "user 65534"); n == 0 || n > web.StrangersPer() {
		t.Errorf("nobody has %d connections, want 1 to %d", n, web.StrangersPer())
	}
	secret, err := os.ReadFile(tokenFile)
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]api.Options{
		"with the token": {URL: "http://" + s.TCPAddr().String(), Token: strings.TrimSpace(string(secret))},
		"at the socket":  {Socket: socket},
	} {
		for range 10 { // over a new connection each time
			began := time.Now()
			c, err := api.Dial(o)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Functions().List(t.Context(), api.ListOptions{}); err != nil || time.Since(began) > web.StrangersTimeout()/2 { // it has not waited for a place
				t.Errorf("%s: %v after %v", name, err, time.Since(began))
			}
			c.Close()
		}
	}
	if n := web.Strangers(s, "user 65534"); n > web.StrangersPer() {
		t.Errorf("nobody has %d connections, want at most %d", n, web.StrangersPer())
	}
	for deadline := time.Now().Add(3 * web.StrangersTimeout()); web.Strangers(s, "user 65534") > 0; <-time.After(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections without the token stay", web.Strangers(s, "user 65534"))
		}
	}
}

// A connection over which a wrong token came is closed.
func TestAStrangersConnectionEnds(t *testing.T) {
	m := testManager(t)
	s, err := m.Listen(web.ServeOptions{Listen: "127.0.0.1:0", TokenFile: filepath.Join(t.TempDir(), "token")})
	if err != nil {
		t.Fatal(err)
	}
	web.SetSource(s, func(net.Conn) string { return "user 65534" }) // the test is root, who is known
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	defer func() { cancel(); <-done }()
	c, err := net.Dial("tcp", s.TCPAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = fmt.Fprintf(c, "GET /v1/functions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != http.StatusUnauthorized || !resp.Close {
		t.Errorf("%v, %v: want 401 and the end", resp, err)
	}
}
