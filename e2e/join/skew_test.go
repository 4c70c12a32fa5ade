package join

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/container"
	runtimes "weir.dev/weir/container/drivers"
	"weir.dev/weir/daemon"
	"weir.dev/weir/daemon/config"
	"weir.dev/weir/datapath"
	"weir.dev/weir/datapath/ebpf"
	"weir.dev/weir/e2e/rig"
	"weir.dev/weir/image"
	"weir.dev/weir/instance"
)

// skewedAgent makes this test's program an agent whose clock is off.
const skewedAgent = "WEIR_TEST_SKEWED_AGENT"

// skewed is what such an agent is told.
type skewed struct {
	Instance           instance.Instance
	Host, Token        string
	Manager, ImagesDir string
	Ahead              time.Duration // of its clock before the machine's
}

func TestMain(m *testing.M) {
	if text := os.Getenv(skewedAgent); text != "" {
		if err := runSkewed(text); err != nil {
			fmt.Fprintln(os.Stderr, "Error:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func runSkewed(text string) error {
	var s skewed
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	return daemon.Agent(ctx, daemon.AgentOptions{
		Instance: s.Instance, Managers: []string{s.Manager}, TokenFile: s.Token, Host: config.Host{Name: s.Host}, Log: log, Ready: func() {},
		Now: func() time.Time { return time.Now().Add(s.Ahead) },
		Drivers: daemon.Drivers{
			Switch: func(ctx context.Context, i instance.Instance) (datapath.Switch, error) {
				return ebpf.Open(ctx, ebpf.Options{Instance: i, Logger: log})
			},
			DestroySwitch: func(ctx context.Context, i instance.Instance) error {
				return ebpf.Destroy(ctx, ebpf.Options{Instance: i})
			},
			Runtime: func(ctx context.Context, i instance.Instance) (container.Runtime, error) {
				return runtimes.Open(ctx, i, runtimes.Options{Adopt: true}, runtimes.Default)
			},
			DestroyRuntime: func(ctx context.Context, i instance.Instance, _ bool) error {
				rt, err := runtimes.Open(ctx, i, runtimes.Options{Adopt: true, Remove: true}, runtimes.Default)
				if err != nil {
					return err
				}
				return rt.Destroy(ctx)
			},
			Images: func(i instance.Instance) daemon.Images {
				return &image.OnDemand{Store: image.Open(i, s.ImagesDir), Log: slog.New(slog.DiscardHandler)}
			},
			Features: ebpf.Features,
		},
	})
}

// skew runs the host's agent with a clock that is off, until it is killed or taken down.
func (h *host) skew(t *testing.T, ahead time.Duration, token string) {
	t.Helper()
	i, err := instance.New(h.instance(), h.root)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(skewed{Instance: i, Host: h.name, Token: token, Manager: managerAddr + ":" + agentsPort, ImagesDir: h.w.Images, Ahead: ahead})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := h.w.Command(context.Background(), h.netns, self)
	c.Env = append(os.Environ(), skewedAgent+"="+string(text))
	h.run(t, c)
}

var differ = regexp.MustCompile(`clocks differ by (\S+):`)

// A host whose clock is off is not let in, and told why; one that has joined goes on, and everybody is told.
func TestClocksThatAreOff(t *testing.T) {
	w, ctx := newWorld(t)
	token := w.token(ctx, t) // one for all: who is refused does not use it up
	h := w.host(ctx, t, "h1")
	offsets := []time.Duration{10 * time.Minute, -10 * time.Minute, 2 * time.Hour, -2 * time.Hour}
	for _, d := range offsets {
		h.skew(t, d, token)
		<-h.done
		for _, word := range []string{"host h1 has", "the manager", "synchronise them (NTP)", "join with the same token"} {
			if !strings.Contains(h.tail(), word) {
				t.Errorf("joining %v off: does not say %q: %s", d, word, h.tail())
			}
		}
		said := differ.FindAllStringSubmatch(h.tail(), -1)
		if len(said) == 0 {
			t.Fatalf("joining %v off: does not say by how much: %s", d, h.tail())
		}
		off, err := time.ParseDuration(said[len(said)-1][1])
		if err != nil || (off-d.Abs()).Abs() > time.Minute { // the time that the request took is in it
			t.Errorf("joining %v off: says %v, %v", d, off, err)
		}
	}
	if t.Failed() {
		return
	}
	h.start(t, "--token-file", token)
	w.state(ctx, t, "h1", "ready")
	w.MustApply(ctx, t, w.wires("h1"))
	s, err := rig.NewStream(w.Alice(), w.Bob(), rig.BobAddr, 9000, 500)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range offsets {
		began := time.Now()
		h.kill(t)
		h.skew(t, d, "")
		rig.Eventually(ctx, t, fmt.Sprintf("an event tells of %v", d), func() (bool, string) {
			out, err := w.Weir(ctx, "events", "--limit", "0", "-o", "json")
			var l struct{ Items []api.Event }
			if err == nil {
				err = json.Unmarshal([]byte(out), &l)
			}
			if err != nil {
				return false, err.Error()
			}
			for _, e := range l.Items {
				if e.Reason == "ClockSkew" && e.Time.After(began) {
					return strings.Contains(e.Message, "host h1 has") && strings.Contains(e.Message, "NTP"), e.Message
				}
			}
			return false, fmt.Sprint(len(l.Items), " events, none of it")
		})
		rig.Eventually(ctx, t, "the agent tells, too", func() (bool, string) {
			return strings.Contains(h.tail(), "clocks differ: synchronise them (NTP)"), h.tail()
		})
		rig.Eventually(ctx, t, "its status tells", func() (bool, string) {
			var out api.Host
			err := w.Get(ctx, &out, "hosts", "h1")
			off := time.Duration(out.Status.Skew)
			return err == nil && out.Status.State == "ready" && (off-d).Abs() < time.Minute, fmt.Sprint(err, out.Status.State, off)
		})
	}
	if err := s.Await(ctx, 100); err != nil {
		t.Fatal(err)
	}
	allArrived(t, s)
}
