package agent_test

import (
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir.dev/weir/api"
	switchfake "weir.dev/weir/datapath/fake"
)

// An endpoint that never became a port lends no right to hear what it names: the host's loopback, where tokens pass, or a namespace of others.
func TestOnlyPortsAreCaptured(t *testing.T) {
	d := newDesk(t, switchfake.Options{})
	d.stop() // a host that does not answer checks nothing at admission
	d.kernel.Namespace(filepath.Join("/desk", "others"))
	specs := map[string]api.EndpointSpec{
		"host":   {Host: "h1", Interface: "lo"},
		"others": {Host: "h1", Netns: "/desk/others", Interface: "lo"},
	}
	for name, s := range specs {
		d.must(d.client.Endpoints().Put(t.Context(), name, s))
	}
	d.must(d.client.Endpoints().Put(t.Context(), "alice", api.EndpointSpec{Interface: "lo"})) // it was a port by another link
	d.sw.Fail("AddEndpoint", errors.New("no port"))
	d.start()
	for _, name := range []string{"host", "others", "alice"} {
		d.until("endpoint "+name+" has failed", func() bool {
			e, err := d.client.Endpoints().Get(t.Context(), name)
			return err == nil && e.Status.State == api.EndpointError
		})
		frames, err := d.agent.Capture(t.Context(), api.KindEndpoint, name, api.CaptureOptions{Count: 1, Bytes: 1 << 20, Snaplen: 60, Duration: time.Second})
		if err == nil {
			frames.Close()
		}
		if p, ok := err.(*api.ProblemError); !ok || p.Status != http.StatusConflict || !strings.Contains(p.Error(), "only ports are captured") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
