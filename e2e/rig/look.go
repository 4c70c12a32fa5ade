package rig

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/api"
	"weir.dev/weir/instance"
)

// lookTimeout bounds one look, as the command bounds one call.
const lookTimeout = 2 * time.Minute

// byCommand has the kinds that `weir get` has read in this process.
var byCommand sync.Map

// Look reads over the socket of an API what `weir get ARGS -o json` prints. It is false if the command has to be asked: for the first look at a kind in this process,
// and where the API gives no answer or an error. Tests look often until something is so, and each command is a process, which takes some 20 ms of a processor. Ports
// have the rules beside them, which the command leaves out.
func Look(ctx context.Context, socket string, into any, args ...string) bool {
	if len(args) == 0 || len(args) > 2 {
		return false
	}
	if _, known := byCommand.LoadOrStore(args[0], true); !known {
		return false
	}
	if args[0] == "counters" || args[0] == "ports" {
		return lookLive(ctx, socket, into, args[1:])
	}
	i := slices.IndexFunc(api.Kinds(), func(k api.Kind) bool { return args[0] == string(k) || args[0] == k.Plural() })
	if i < 0 {
		return false
	}
	path := "/v1/" + api.Kinds()[i].Plural()
	if len(args) == 2 {
		path += "/" + url.PathEscape(args[1])
	}
	return read(ctx, socket, path, into)
}

// lookLive reads what the switch of a host counts; without a name that of the only host.
func lookLive(ctx context.Context, socket string, into any, host []string) bool {
	if len(host) == 0 {
		var all api.List[api.Host]
		if !read(ctx, socket, "/v1/hosts", &all) || len(all.Items) != 1 {
			return false
		}
		host = []string{all.Items[0].Name}
	}
	return read(ctx, socket, "/v1/hosts/"+url.PathEscape(host[0])+"/counters", into)
}

func read(ctx context.Context, socket, path string, into any) bool {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://weir"+path, nil)
	if err != nil {
		return false
	}
	// A connection for each look: by the next one the daemon may be another.
	t := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	answer, err := t.RoundTrip(q)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	return answer.StatusCode == http.StatusOK && json.NewDecoder(answer.Body).Decode(into) == nil
}

// socket of the API; empty: the environment names another place.
func (r *Rig) socket() string {
	i, err := instance.New(r.Name, r.Root)
	if err != nil || slices.ContainsFunc(r.Env(), func(e string) bool { return strings.HasPrefix(e, "WEIR_SOCKET=") || strings.HasPrefix(e, "WEIR_URL=") }) {
		return ""
	}
	return i.Socket()
}

// listens tells whether somebody is at the API's socket.
func (r *Rig) listens(ctx context.Context) bool {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", r.socket())
	if err == nil {
		c.Close()
	}
	return err == nil
}
