package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"weir.dev/weir/api"
)

// sendFor bounds one try.
const sendFor = 10 * time.Second

// Headers of a webhook's request. The signature is HMAC-SHA256 by the secret of the time, a point, and the body.
const (
	HeaderID        = "Weir-Event"     // the event's name: the same at each try
	HeaderTime      = "Weir-Time"      // seconds since 1970
	HeaderSignature = "Weir-Signature" // sha256=HEX
)

// Sign is the signature of a request.
func Sign(secret, at string, body []byte) string {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(at + "."))
	h.Write(body)
	return "sha256=" + hex.EncodeToString(h.Sum(nil))
}

// webhook sends HTTP POSTs.
type webhook struct {
	url, secret, token string
	body               func(api.Event) any
}

// client follows no redirects: what is signed goes to whom the operator named.
var client = &http.Client{Timeout: sendFor, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

func plain(e api.Event) any { return e }

// text is what chat services take: Slack and Mattermost as they are, Discord at an address that ends with /slack.
func text(e api.Event) any {
	words := []string{strings.ToUpper(string(e.Severity)), e.Reason}
	if e.Object != "" {
		words = append(words, string(e.Kind)+"/"+e.Object)
	}
	if e.Host != "" {
		words = append(words, "on "+e.Host)
	}
	t := strings.Join(words, " ") + ": " + e.Message
	if e.Count > 1 {
		t += fmt.Sprintf(" (%d times)", e.Count)
	}
	return map[string]string{"text": t}
}

func (w *webhook) send(ctx context.Context, e api.Event) error {
	body, err := json.Marshal(w.body(e))
	if err != nil {
		return fmt.Errorf("%w: %w", errPermanent, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return errors.New("the URL cannot be used")
	}
	at := strconv.FormatInt(time.Now().Unix(), 10)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "weir")
	req.Header.Set(HeaderID, e.Name)
	req.Header.Set(HeaderTime, at)
	if w.secret != "" {
		req.Header.Set(HeaderSignature, Sign(w.secret, at, body))
	}
	if w.token != "" {
		req.Header.Set("Authorization", "Bearer "+w.token)
	}
	resp, err := client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) { // without the URL, which may have a secret
			err = u.Err
		}
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	switch {
	case resp.StatusCode < 300:
		return nil
	case resp.StatusCode == http.StatusRequestTimeout, resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode >= 500:
		return fmt.Errorf("it answers %s", resp.Status)
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden, resp.StatusCode == http.StatusNotFound: // the operator mends it
		return fmt.Errorf("it answers %s: is the address right, and the token or secret?", resp.Status)
	}
	return fmt.Errorf("%w: it answers %s", errPermanent, resp.Status)
}

// alertFor is how long an alert stays unless the event comes again: Alertmanager resolves it then.
const alertFor = 15 * time.Minute

// alert is an event as Alertmanager's API v2 takes it. It begins when the event came, and its end counts from now: an alert that has waited for an Alertmanager that
// was away would otherwise come as one that has ended, of which nobody is told.
func alert(e api.Event) any {
	now := time.Now()
	labels := map[string]string{"alertname": e.Reason, "severity": string(e.Severity), "source": "weir"}
	for k, v := range map[string]string{"kind": string(e.Kind), "object": e.Object, "host": e.Host, "raised_by": e.Source} {
		if v != "" {
			labels[k] = v
		}
	}
	return []map[string]any{{
		"labels": labels, "annotations": map[string]string{"summary": e.Message}, "startsAt": e.Time.UTC().Format(time.RFC3339Nano),
		"endsAt": now.UTC().Add(alertFor).Format(time.RFC3339Nano),
	}}
}

// syslog sends messages as RFC 5424 has them; over TCP with the length before each (RFC 6587).
type syslog struct {
	network, address string
	host             string

	mu   sync.Mutex
	conn net.Conn
}

func newSyslog(to string) (*syslog, error) {
	u, err := url.Parse(to)
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "-"
	}
	s := &syslog{network: u.Scheme, address: u.Host, host: host}
	if u.Scheme == "unix" {
		s.network, s.address = "unixgram", u.Path
	}
	return s, nil
}

// facility is "daemon"; severities are those of RFC 5424.
const facility = 3 << 3

var syslogSeverity = map[api.Severity]int{api.Error: 3, api.Warning: 4, api.Info: 6}

// maxSyslog is what receivers take at least (RFC 5424, 6.1 wants 480, recommends 2048).
const maxSyslog = 2048

func (s *syslog) message(e api.Event) []byte {
	severity, known := syslogSeverity[e.Severity]
	if !known {
		severity = 5
	}
	word := func(text string) string { // PRINTUSASCII, no space
		out := strings.Map(func(r rune) rune {
			if r <= ' ' || r > '~' {
				return '_'
			}
			return r
		}, text)
		return out[:min(len(out), 32)]
	}
	quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`, `]`, `\]`)
	data := ""
	for _, p := range [][2]string{{"object", strings.Trim(string(e.Kind)+"/"+e.Object, "/")}, {"host", e.Host}, {"raised_by", e.Source}} {
		if p[1] != "" {
			data += fmt.Sprintf(` %s="%s"`, p[0], quoted.Replace(oneLine(p[1])))
		}
	}
	id := word(e.Reason)
	if id == "" {
		id = "-"
	}
	text := fmt.Sprintf("<%d>1 %s %s weir - %s [weir@57005%s] %s", facility+severity, e.Time.UTC().Format("2006-01-02T15:04:05.000000Z07:00"), word(s.host), id, data, oneLine(e.Message))
	return []byte(strings.ToValidUTF8(text[:min(len(text), maxSyslog)], ""))
}

// oneLine keeps what a function says from making lines of its own.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
}

func (s *syslog) send(ctx context.Context, e api.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		conn, err := (&net.Dialer{Timeout: sendFor}).DialContext(ctx, s.network, s.address)
		if err != nil {
			return err
		}
		s.conn = conn
	}
	b := s.message(e)
	if s.network == "tcp" {
		b = append([]byte(strconv.Itoa(len(b))+" "), b...)
	}
	err := s.conn.SetWriteDeadline(time.Now().Add(sendFor))
	if err == nil {
		_, err = s.conn.Write(b)
	}
	if err != nil {
		_ = s.conn.Close()
		s.conn = nil
	}
	return err
}
