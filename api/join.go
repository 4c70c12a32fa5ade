package api

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// NodeProtocol is the Upgrade token of GET /v1/hosts/NAME/connect: after 101 the manager speaks HTTP/2 (RFC 9113) as a client over the
// connection, and the agent answers it.
const NodeProtocol = "weir-node"

// How managers tell that a host is alive.
const (
	Beat     = time.Second     // how often an agent calls POST /v1/hosts/NAME/beat
	BeatLost = 3 * time.Second // a host whose agent was silent for so long is lost
)

// Token lets its bearer use the API with a role, or, with the role agent, one agent join. Its secret is shown once, when it is made; managers
// keep its hash only.
type Token struct {
	ID       string    `json:"id"`                // its name; of one to join with 8 hexadecimal digits
	Role     Role      `json:"role"`              // agent: to join with
	Host     string    `json:"host,omitempty"`    // the only host that may join with it; "": any that is new
	Replace  bool      `json:"replace,omitempty"` // Host may be joined already: its former agent is shut out
	CPUs     string    `json:"cpus,omitempty"`    // what the host has, see HostSpec
	Memory   string    `json:"memory,omitempty"`
	Created  time.Time `json:"created"`
	Rotated  time.Time `json:"rotated,omitzero"`
	Expires  time.Time `json:"expires,omitzero"`    // zero: the token file of a manager, which does not
	Used     time.Time `json:"used,omitzero"`       // last, to the minute
	UsedBy   string    `json:"used_by,omitempty"`   // the host that joined with it
	UsedFrom string    `json:"used_from,omitempty"` // the address from which it was used last
	Token    string    `json:"token,omitempty"`     // the whole token, in the answers of POST only
}

// TokenRequest is the body of POST /v1/tokens: with Name and Role a token for the API, else one to join with.
type TokenRequest struct {
	Name    string `json:"name,omitempty"`
	Role    Role   `json:"role,omitempty"`
	TTL     string `json:"ttl,omitempty"` // as 1h30m; default 1h and at most 168h to join, else default 720h and at most 8784h
	Host    string `json:"host,omitempty"`
	Replace bool   `json:"replace,omitempty"` // with Host only
	CPUs    string `json:"cpus,omitempty"`    // with Host only: what it has, see HostSpec
	Memory  string `json:"memory,omitempty"`
}

// JoinRequest is the body of POST /v1/join, at the agents' listener only. It needs no certificate; the token is the proof. Repeated with
// the same key and an equal host it gives a certificate again, so that a lost answer does no harm.
type JoinRequest struct {
	ID      string    `json:"id"` // of the token
	Secret  string    `json:"secret"`
	Host    string    `json:"host"`
	Request string    `json:"request"` // PKCS #10 in PEM, ECDSA P-256
	Time    time.Time `json:"time"`    // the host's clock
}

// CertificateRequest is the body of POST /v1/certificates: an agent's wish for its next certificate.
type CertificateRequest struct {
	Request string `json:"request"` // as in JoinRequest, with a new key
}

// Certificate answers JoinRequest and CertificateRequest.
type Certificate struct {
	Host        string    `json:"host"`
	Certificate string    `json:"certificate"` // PEM
	Authority   string    `json:"authority"`   // PEM
	Expires     time.Time `json:"expires"`
	Time        time.Time `json:"time"` // the manager's clock
}

// BeatRequest is the body of POST /v1/hosts/NAME/beat, BeatAnswer its answer.
type BeatRequest struct {
	Time time.Time `json:"time,omitzero"` // the host's clock
}

// BeatAnswer has the manager's clock.
type BeatAnswer struct {
	Time time.Time `json:"time"`
}

// NewToken makes a join token.
func (c *Client) NewToken(ctx context.Context, r TokenRequest) (Token, error) {
	var out Token
	_, err := c.call(ctx, http.MethodPost, "/v1/tokens", r, &out)
	return out, err
}

// Tokens lists join tokens without their secrets, by age.
func (c *Client) Tokens(ctx context.Context) ([]Token, error) {
	var out List[Token]
	_, err := c.call(ctx, http.MethodGet, "/v1/tokens", nil, &out)
	return out.Items, err
}

// DeleteToken makes a join token worthless.
func (c *Client) DeleteToken(ctx context.Context, id string) error {
	_, err := c.call(ctx, http.MethodDelete, "/v1/tokens/"+url.PathEscape(id), nil, nil)
	return err
}

// Join asks for a host's first certificate.
func (c *Client) Join(ctx context.Context, r JoinRequest) (Certificate, error) {
	var out Certificate
	_, err := c.call(ctx, http.MethodPost, "/v1/join", r, &out)
	return out, err
}

// Renew asks for the next certificate of the host as which the client is known.
func (c *Client) Renew(ctx context.Context, r CertificateRequest) (Certificate, error) {
	var out Certificate
	_, err := c.call(ctx, http.MethodPost, "/v1/certificates", r, &out)
	return out, err
}

// AgentConfig reads what all hosts have in common, and one host's key of link discovery. An agent can ask for its own host only.
func (c *Client) AgentConfig(ctx context.Context, host string) (AgentConfig, error) {
	var out AgentConfig
	_, err := c.call(ctx, http.MethodGet, "/v1/agent/config?"+url.Values{"host": {host}}.Encode(), nil, &out)
	return out, err
}

// Beat tells that a host is alive.
func (c *Client) Beat(ctx context.Context, host string, now time.Time) (BeatAnswer, error) {
	var out BeatAnswer
	_, err := c.call(ctx, http.MethodPost, "/v1/hosts/"+url.PathEscape(host)+"/beat", BeatRequest{now}, &out)
	return out, err
}
