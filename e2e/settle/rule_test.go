package settle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/e2e/rig"
)

const (
	promised = time.Second          // how soon a rule holds for a settled flow
	pace     = 5 * time.Millisecond // of lines while a rule changes
	quiet    = 2 * time.Second      // without a packet: TCP sends what is not acknowledged again after 0.2, 0.6 and 1.4 s
	longest  = 10 * time.Second     // for which a flow is watched that goes on
)

// rule comes into force in the middle of a settled flow.
type rule struct {
	what   string
	settle func(try int) *talk     // a settled flow that the rules allow
	forbid func(try int) time.Time // have a rule in force against it, and say since when it is: what the function or Weir has said
	resets bool                    // who gets the flow's packets behind the rule may end the connection
}

// holds: no packet of the flow passes later than promised after its rule is in force. Both times are the kernel's and those of whoever has put the rule in force, so it does
// not matter when this process gets a processor. Whether they got one in time is the machine's affair: so there is a second try, with another flow, and the delay of the first is said.
func (x rule) holds(t *testing.T, r *rig.Rig) {
	t.Helper()
	for try := range 2 {
		late, err := x.settle(try).until(r, func() time.Time { return x.forbid(try) })
		if err != nil && !(x.resets && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE))) {
			t.Fatalf("%s: %v", x.what, err)
		}
		if late <= promised {
			t.Logf("%s: the last packet of a settled flow passed %s after it was in force", x.what, max(late, 0).Round(time.Millisecond))
			return
		}
		if try == 0 {
			t.Logf("%s: a settled flow went on for %s after it was in force, want at most %s: once more", x.what, late.Round(time.Millisecond), promised)
			continue
		}
		t.Errorf("%s: a settled flow went on for %s after it was in force, want at most %s", x.what, late.Round(time.Millisecond), promised)
	}
}

// until a rule against the flow is in force, and for a while afterwards, lines are said all the time. It returns how much later than the rule the last packet with one of them
// came to bob, by the kernel's time; negative: before. Packets from another address, as nat makes them, are others.
func (w *talk) until(r *rig.Rig, forbid func() time.Time) (late time.Duration, err error) {
	w.t.Helper()
	seen, err := rig.Listen(r.Bob(), "eth0")
	if err != nil {
		w.t.Fatal(err)
	}
	defer seen.Close()
	said, stop := make(chan error, 1), make(chan struct{})
	go func() { said <- w.sayUntil(stop) }()
	end := func() error {
		close(stop)
		defer func() { // by a reset: nothing of it is sent again, into what is measured next
			_ = w.c.(*net.TCPConn).SetLinger(0)
			_ = w.c.Close()
		}()
		for {
			_ = w.c.SetDeadline(time.Unix(1, 0)) // a line that waits for its answer ends
			select {
			case err := <-said:
				return err
			case <-time.After(pace):
			}
		}
	}
	text := fmt.Sprintf("line %s ", w.c.LocalAddr())
	for begun := time.Now(); len(seen.Incoming(text)) < 10; time.Sleep(pace) {
		if time.Since(begun) > 20*time.Second {
			w.t.Fatalf("lines do not come to bob: %v", end())
		}
	}
	from := source(seen.Incoming(text)[0].Data)
	since := forbid()
	var last time.Time
	for time.Since(since) < longest {
		for _, f := range seen.Incoming(text) {
			if bytes.Equal(source(f.Data), from) && f.At.After(last) {
				last = f.At
			}
		}
		if time.Since(last) > quiet && time.Since(since) > quiet {
			break
		}
		time.Sleep(20 * pace)
	}
	return last.Sub(since), end()
}

// sayUntil says a line after the other until it is to stop; the one that waits then may go without an answer.
func (w *talk) sayUntil(stop <-chan struct{}) error {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		err := w.say(5 * time.Minute)
		select {
		case <-stop:
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			}
			return err
		default:
		}
		if err != nil {
			return err
		}
		<-tick.C
	}
}

// source is the address of IP that a frame without a tag comes from.
func source(frame []byte) []byte {
	if len(frame) >= 54 && frame[12] == 0x86 && frame[13] == 0xdd {
		return frame[22:38]
	}
	return frame[26:30]
}

// inForce does something that has a function log a text once more, and tells when it did.
func inForce(ctx context.Context, t *testing.T, r *rig.Rig, name, text string, do func()) time.Time {
	t.Helper()
	times := func() (all []time.Time) {
		out, err := r.Weir(ctx, "function", "logs", name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out) {
			_, rest, timed := strings.Cut(line, "time=")
			word, _, _ := strings.Cut(rest, " ")
			if at, err := time.Parse(time.RFC3339Nano, word); timed && err == nil && strings.Contains(line, text) {
				all = append(all, at)
			}
		}
		return all
	}
	before := len(times())
	do()
	var at time.Time
	rig.Eventually(ctx, t, name+" logs: "+text, func() (bool, string) {
		all := times()
		if len(all) <= before {
			return false, "not yet"
		}
		at = all[len(all)-1]
		return true, ""
	})
	return at
}
