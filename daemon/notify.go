package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// notifier reports the daemon's state to systemd: ready, alive, stopping. See sd_notify(3). The zero value reports to nobody. (go-systemd's SdNotify reads the
// environment at each call, which newNotifier clears.)
type notifier struct {
	socket   string
	watchdog time.Duration // systemd restarts the daemon if it is silent so long; 0 never
}

// newNotifier reads what systemd gave this process. The variables are taken out of the environment, so that children (OCI runtimes look for them) do not
// speak for the daemon.
func newNotifier() notifier {
	n := notifier{socket: os.Getenv("NOTIFY_SOCKET")}
	usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	pid := os.Getenv("WATCHDOG_PID")
	if err == nil && usec > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		n.watchdog = time.Duration(usec) * time.Microsecond
	}
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		_ = os.Unsetenv(name)
	}
	return n
}

// tell sends one notification. Nobody depends on its arrival but systemd, which restarts a service that it does not hear of.
func (n notifier) tell(state string) error {
	if n.socket == "" {
		return nil
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	defer c.Close()
	if err := c.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	if _, err := c.Write([]byte(state)); err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	return nil
}

// ready reports that the daemon works.
func (n notifier) ready(log *slog.Logger) {
	if err := n.tell("READY=1\nSTATUS=running\nMAINPID=" + strconv.Itoa(os.Getpid())); err != nil {
		log.Warn("notify", "error", err)
	}
}

// stopping reports that the daemon ends. What it made goes on forwarding.
func (n notifier) stopping() { _ = n.tell("STOPPING=1") }

// watch reports to the watchdog, three times in its interval, as long as alive returns nil, until ctx ends. A daemon that is not alive reports why, and is
// restarted by systemd; what it made forwards on meanwhile.
func (n notifier) watch(ctx context.Context, log *slog.Logger, alive func(context.Context) error) {
	if n.socket == "" || n.watchdog <= 0 {
		return
	}
	every := n.watchdog / 3
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		quick, cancel := context.WithTimeout(ctx, every)
		err := alive(quick)
		cancel()
		if ctx.Err() != nil {
			return
		}
		state := "WATCHDOG=1\nSTATUS=running"
		if err != nil {
			log.Error("the watchdog gets no sign of life", "why", err)
			state = "STATUS=not alive: " + strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		if err := n.tell(state); err != nil {
			log.Warn("watchdog", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
