package notify

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"weir.dev/weir/api"
)

// Config is the file of `weir notify`.
type Config struct {
	Targets []Target `yaml:"targets"`
}

// Target is one that is told. Exactly one of Webhook, Alertmanager and Syslog says how.
type Target struct {
	Name         string       `yaml:"name"`
	Webhook      string       `yaml:"webhook"`      // URL that gets a POST
	Format       string       `yaml:"format"`       // of a webhook's body: "event", the event as JSON (default), or "text", {"text": "..."}, as chat services want it
	Alertmanager string       `yaml:"alertmanager"` // URL of an Alertmanager
	Syslog       string       `yaml:"syslog"`       // unix:///dev/log, udp://HOST:514 or tcp://HOST:514
	SecretFile   string       `yaml:"secret_file"`  // of a webhook: its content signs each request
	TokenFile    string       `yaml:"token_file"`   // of a webhook or Alertmanager: its content is the bearer token
	Severity     api.Severity `yaml:"severity"`     // this severe or more; default info
	From         []string     `yaml:"from"`         // only what these raised: function/NAME, host/NAME, manager, router; empty: all
}

var targetName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Formats of a webhook's body.
const (
	formatEvent = "event"
	formatText  = "text"
)

// maxTargets of a file, and bytes of a secret.
const (
	maxTargets = 50
	maxSecret  = 4 << 10
)

// Load reads and checks a file. Errors carry line and column.
func Load(path string) (Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Config{}, err
	}
	var c Config
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&c); err != nil && !errors.Is(err, io.EOF) { // an empty file has no targets
		return c, fmt.Errorf("%s: %w", path, err)
	}
	if err := c.check(); err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

func (c Config) check() error {
	if n := len(c.Targets); n < 1 || n > maxTargets {
		return fmt.Errorf("targets: want 1 to %d", maxTargets)
	}
	seen := map[string]bool{}
	var errs []error
	for i, t := range c.Targets {
		if err := t.check(); err != nil {
			errs = append(errs, fmt.Errorf("targets[%d]: %w", i, err))
		}
		if seen[t.Name] {
			errs = append(errs, fmt.Errorf("targets[%d]: name %q is there twice", i, t.Name))
		}
		seen[t.Name] = true
	}
	return errors.Join(errs...)
}

func (t Target) check() error {
	if !targetName.MatchString(t.Name) {
		return fmt.Errorf("name %q: want letters a-z, digits and inner -", t.Name)
	}
	ways := 0
	for _, way := range []struct {
		key, url string
		check    func(*url.URL) error
	}{{"webhook", t.Webhook, checkHTTP}, {"alertmanager", t.Alertmanager, checkHTTP}, {"syslog", t.Syslog, checkSyslog}} {
		if way.url == "" {
			continue
		}
		ways++
		u, err := url.Parse(way.url)
		if err != nil {
			u = &url.URL{}
		}
		if err := way.check(u); err != nil {
			return fmt.Errorf("%s: %w", way.key, err)
		}
	}
	switch {
	case ways != 1:
		return errors.New("want exactly one of webhook, alertmanager, syslog")
	case t.SecretFile != "" && t.Webhook == "":
		return errors.New("secret_file: only a webhook is signed")
	case t.Format != "" && t.Webhook == "":
		return errors.New("format: only a webhook has one")
	case !slices.Contains([]string{"", formatEvent, formatText}, t.Format):
		return fmt.Errorf("format %q: want %s or %s", t.Format, formatEvent, formatText)
	case t.TokenFile != "" && t.Syslog != "":
		return errors.New("token_file: syslog takes none")
	case !slices.Contains([]api.Severity{"", api.Info, api.Warning, api.Error}, t.Severity):
		return fmt.Errorf("severity %q: want info, warning or error", t.Severity)
	}
	for _, f := range t.From {
		kind, name, of := strings.Cut(f, "/")
		if f != api.SourceManager && f != api.SourceRouter && (!of || name == "" || kind != string(api.KindHost) && kind != string(api.KindFunction)) {
			return fmt.Errorf("from %q: want function/NAME, host/NAME, manager or router", f)
		}
	}
	return nil
}

// checkHTTP and checkSyslog check a URL. It may have a secret, so errors do not show it.
func checkHTTP(u *url.URL) error {
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return errors.New("want a URL such as https://HOST/PATH")
	}
	return nil
}

func checkSyslog(u *url.URL) error {
	switch u.Scheme {
	case "unix":
		if u.Host != "" || u.Path == "" {
			return errors.New("want three slashes and the path of a socket: unix:///dev/log")
		}
	case "udp", "tcp":
		if u.Hostname() == "" || u.Port() == "" {
			return fmt.Errorf("want a host and a port: %s://HOST:514", u.Scheme)
		}
	default:
		return errors.New("want unix:///dev/log, udp://HOST:514 or tcp://HOST:514")
	}
	return nil
}

// wants tells whether an event is for the target.
func (t Target) wants(e api.Event) bool {
	order := []api.Severity{api.Info, api.Warning, api.Error}
	return slices.Index(order, e.Severity) >= slices.Index(order, t.Severity) && (len(t.From) == 0 || slices.Contains(t.From, e.Source))
}

// sender of the target.
func (t Target) sender() (sender, error) {
	secret, err := secretIn(t.SecretFile)
	if err != nil {
		return nil, fmt.Errorf("secret_file: %w", err)
	}
	token, err := secretIn(t.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("token_file: %w", err)
	}
	switch {
	case t.Webhook != "":
		body := plain
		if t.Format == formatText {
			body = text
		}
		return &webhook{url: t.Webhook, secret: secret, token: token, body: body}, nil
	case t.Alertmanager != "":
		return &webhook{url: strings.TrimSuffix(t.Alertmanager, "/") + "/api/v2/alerts", token: token, body: alert}, nil
	}
	return newSyslog(t.Syslog)
}

func secretIn(path string) (string, error) {
	secret, err := readSecret(path)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrFile, err)
	}
	return secret, nil
}

// readSecret reads a file that others may not read; "" is none.
func readSecret(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("%s can be read by others (mode %#o): chmod 600 it", path, info.Mode().Perm())
	}
	if info.Size() > maxSecret {
		return "", fmt.Errorf("%s: want at most %d bytes", path, maxSecret)
	}
	text, err := os.ReadFile(path)
	if err == nil && strings.TrimSpace(string(text)) == "" {
		err = fmt.Errorf("%s is empty", path)
	}
	return strings.TrimSpace(string(text)), err
}
