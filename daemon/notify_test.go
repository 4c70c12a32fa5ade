package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/instance"
)

// systemd listens as systemd does, and gives this process its environment.
func systemd(t *testing.T, watchdog string) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", watchdog)
	return c
}

func hear(t *testing.T, c *net.UnixConn, within time.Duration) string {
	t.Helper()
	b := make([]byte, 4096)
	_ = c.SetReadDeadline(time.Now().Add(within))
	n, err := c.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

func TestSystemdHearsOfTheDaemon(t *testing.T) {
	c := systemd(t, "300000")
	n := newNotifier()
	if os.Getenv("NOTIFY_SOCKET") != "" || os.Getenv("WATCHDOG_USEC") != "" {
		t.Error("children would inherit the socket")
	}
	n.ready(slog.New(slog.DiscardHandler))
	if got := hear(t, c, 5*time.Second); !strings.HasPrefix(got, "READY=1\n") {
		t.Errorf("heard %q, want READY=1", got)
	}
	alive := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		n.watch(ctx, slog.New(slog.DiscardHandler), func(context.Context) error {
			select {
			case err := <-alive:
				alive <- err
				return err
			default:
				return nil
			}
		})
		close(ended)
	}()
	for range 3 {
		if got := hear(t, c, 5*time.Second); !strings.HasPrefix(got, "WATCHDOG=1\n") {
			t.Errorf("heard %q, want WATCHDOG=1", got)
		}
	}
	alive <- errors.New("the store\ndoes not answer")
	for got := ""; !strings.HasPrefix(got, "STATUS=not alive"); {
		if got = hear(t, c, 5*time.Second); got == "" {
			t.Fatal("heard nothing")
		}
	}
	for range 3 { // what is not alive gives no sign of life, and says why in one line
		if got := hear(t, c, 5*time.Second); got != "STATUS=not alive: the store; does not answer" {
			t.Errorf("heard %q", got)
		}
	}
	cancel()
	<-ended
	for hear(t, c, 50*time.Millisecond) != "" { // sent before the end
	}
	n.stopping()
	if got := hear(t, c, 5*time.Second); got != "STOPPING=1" {
		t.Errorf("heard %q", got)
	}
}

func TestWatchdogOfAnotherProcessIsNotOurs(t *testing.T) {
	systemd(t, "300000")
	t.Setenv("WATCHDOG_PID", "1")
	if n := newNotifier(); n.watchdog != 0 || n.socket == "" {
		t.Errorf("%+v", n)
	}
}

func TestWithoutSystemdNobodyIsTold(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	n := newNotifier()
	if err := n.tell("READY=1"); err != nil {
		t.Error(err)
	}
	n.watch(t.Context(), slog.New(slog.DiscardHandler), func(context.Context) error { t.Error("asked"); return nil }) // returns at once
}

// A word of a command line means in a unit what it means here.
func TestUnitQuotesWords(t *testing.T) {
	text := Unit(UnitOptions{Instance: instance.Instance{Name: "0", Root: "/var/lib/weir/0"}, Command: "up", Program: "/opt/weir 1/weir",
		Args: []string{"--host=100%", "--images=$HOME/x", `--log-level="a\b"`, "--placement=pack"}})
	want := `ExecStart="/opt/weir 1/weir" up --name=0 --root=/var/lib/weir/0 --host=100%% --images=$$HOME/x "--log-level=\"a\\b\"" --placement=pack` + "\n"
	if !strings.Contains(text, want) {
		t.Errorf("want %s in\n%s", want, text)
	}
}
