package docker

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"weir.dev/weir/container"
	"weir.dev/weir/container/oci"
	"weir.dev/weir/instance"
	"weir.dev/weir/portkind"
)

const (
	defaultHost   = "unix:///var/run/docker.sock"
	defaultScript = "/var/lib/weir/docker-runtime" // no instance has so long a name
	runtimeName   = "weir"
	oldestAPI     = "1.40"
	lookTimeout   = 10 * time.Second
)

//go:embed runtime.sh
var script []byte

// errAway says that no engine listens.
var errAway = errors.New("the engine does not answer")

// connect makes a client. It does not connect.
func connect(inst instance.Instance, o Options) (*engine, error) {
	host := cmp.Or(o.Host, os.Getenv(client.EnvOverrideHost), defaultHost)
	if path, ok := strings.CutPrefix(host, "unix://"); !ok || !filepath.IsAbs(path) {
		return nil, fmt.Errorf("engine at %q: want unix:///PATH, an engine on this host (set %s)", host, client.EnvOverrideHost)
	}
	c, err := client.New(client.WithHost(host))
	if err != nil {
		return nil, err
	}
	return &engine{inst: inst, host: host, script: cmp.Or(o.Script, defaultScript), api: c}, nil
}

// found is what the engine says of itself.
type found struct {
	api  string
	info system.Info
}

// look asks the engine what it is.
func (e *engine) look(ctx context.Context) (found, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	var f found
	ping, err := e.api.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true})
	if f.api = ping.APIVersion; f.api == "" && err == nil {
		return f, fmt.Errorf("what listens at %s tells no version of its API: this is no Docker engine, or one before 1.12: want API %s (Docker 19.03) or newer",
			e.host, oldestAPI)
	}
	if errdefs.IsInvalidArgument(err) {
		return f, fmt.Errorf("the engine at %s speaks version %s of its API: want %s or newer (Docker 19.03 or later)", e.host, f.api, oldestAPI)
	}
	if err == nil {
		var r client.SystemInfoResult
		r, err = e.api.Info(ctx, client.InfoOptions{})
		f.info = r.Info
	}
	if err != nil {
		return f, e.unreachable(err)
	}
	return f, nil
}

// unreachable says why no engine answers, and what would help.
func (e *engine) unreachable(err error) error {
	path := strings.TrimPrefix(e.host, "unix://")
	_, serr := os.Stat(path)
	var refused *net.OpError
	switch {
	case errors.Is(serr, fs.ErrNotExist):
		return fmt.Errorf("no socket at %s: %w: install Docker's engine and start it (apt-get install docker.io; systemctl start docker), or name its socket in %s",
			path, errAway, client.EnvOverrideHost)
	case errors.Is(serr, fs.ErrPermission) || strings.Contains(err.Error(), "permission denied"):
		return fmt.Errorf("no permission for %s: run weir as root", path)
	case client.IsErrConnectionFailed(err) || errors.As(err, &refused):
		return fmt.Errorf("nobody listens at %s: %w: start it (systemctl start docker)", path, errAway)
	}
	return fmt.Errorf("%w at %s: %w", errAway, path, err)
}

// lacks tells what keeps an engine that answers from being used; "" nothing does.
func (e *engine) lacks(f found) string {
	for _, o := range f.info.SecurityOptions {
		if strings.Contains(o, "name=rootless") {
			return "the engine is rootless: its containers cannot be in Weir's network namespaces; run one as root, or use another runtime"
		}
	}
	if f.info.OSType != "" && f.info.OSType != "linux" {
		return "the engine runs containers of " + f.info.OSType + ": want linux"
	}
	if _, err := exec.LookPath(program); err != nil {
		return "no program runc: install it (apt-get install runc)"
	}
	if out, err := exec.Command("env", "--block-signal=XFSZ", "true").CombinedOutput(); err != nil {
		return fmt.Sprintf("env --block-signal: %v: %s: want env of GNU coreutils 8.31 or newer", err, strings.TrimSpace(string(out)))
	}
	have, ok := f.info.Runtimes[runtimeName]
	switch {
	case !ok:
		return e.register("the engine has no runtime " + runtimeName)
	case have.Path != e.script || len(have.Args) > 0:
		return e.register(fmt.Sprintf("the engine's runtime %s is %s, want %s", runtimeName, strings.Join(append([]string{have.Path}, have.Args...), " "), e.script))
	}
	return ""
}

// register says how the operator makes the script a runtime of the engine. Its configuration is not ours to change.
func (e *engine) register(why string) string {
	entry, err := json.Marshal(map[string]any{"runtimes": map[string]any{runtimeName: map[string]string{"path": e.script}}})
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s, by which its containers get Weir's ports and namespaces: write %s into /etc/docker/daemon.json (beside what is there) and run: "+
		"systemctl reload docker (no container is stopped)", why, entry)
}

// writeScript writes the runtime, where it is not there as it should be. It stays when an instance ends: the engine knows it, and others may use it.
func (e *engine) writeScript() error {
	if have, err := os.ReadFile(e.script); err == nil && slices.Equal(have, script) {
		if fi, err := os.Stat(e.script); err == nil && fi.Mode().Perm() == 0o755 {
			return nil
		}
	}
	if err := instance.MakeDir(filepath.Dir(e.script), 0o755); err != nil {
		return err
	}
	if err := instance.Replace(e.script, script, 0o755); err != nil {
		return err
	}
	return os.Chmod(e.script, 0o755) // whatever the umask
}

// About tells whether an engine is there and may be used.
func About(ctx context.Context, o Options) container.About {
	a := container.About{Name: Name, Ports: []portkind.Kind{portkind.Veth}, Userns: true}
	e, err := connect(instance.Instance{}, o)
	if err != nil {
		a.Missing = err.Error()
		return a
	}
	defer e.api.Close()
	f, err := e.look(ctx)
	if err != nil {
		a.Missing = err.Error()
		return a
	}
	a.Version = fmt.Sprintf("Docker engine %s, API %s", f.info.ServerVersion, f.api)
	a.Missing = e.lacks(f)
	var notes []string
	if a.Missing == "" {
		below := oci.About(ctx, oci.Options{CLI: program, Vulnerable: o.Vulnerable})
		a.Missing = below.Missing
		notes = append(notes, below.Note)
	}
	notes = slices.DeleteFunc(append(notes, bridgeNotes()...), func(n string) bool { return n == "" })
	a.Note = strings.Join(notes, "; ")
	return a
}

// explain says what to do where the engine's error does not.
func explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", errAway, err)
	case client.IsErrConnectionFailed(err):
		return fmt.Errorf("%w: start it (systemctl start docker): %w", errAway, err)
	case strings.Contains(err.Error(), "no space left on device"):
		return fmt.Errorf("disk full: free some space under the engine's data root (docker system df): %w", err)
	case strings.Contains(err.Error(), "unknown or invalid runtime name") || strings.Contains(err.Error(), "Unknown runtime specified"):
		return fmt.Errorf("the engine has lost its runtime %s (see weir check): %w", runtimeName, err)
	}
	return err
}
