package api

import (
	"context"
	"net/http"
	"time"
)

// SessionRequest is the body of POST /v1/session, at the address of the web UI: either the code of a link or a token.
type SessionRequest struct {
	Code  string `json:"code,omitempty"`
	Token string `json:"token,omitempty"`
}

// Session says as whom a client of the API is known.
type Session struct {
	Who     string    `json:"who"`
	Role    Role      `json:"role"`
	Expires time.Time `json:"expires,omitzero"` // of a session of the web UI: when it ends
	UI      string    `json:"ui,omitempty"`     // address of this manager's web UI, if it serves one
	Version string    `json:"version,omitempty"`
}

// SessionLink opens the web UI once, with the rights of whoever asked for it.
type SessionLink struct {
	URL     string    `json:"url"`     // the code is in its fragment
	Address string    `json:"address"` // of the web UI, without the code
	Role    Role      `json:"role"`
	Expires time.Time `json:"expires"` // of the code
}

// SessionLink makes a link that opens the web UI once.
func (c *Client) SessionLink(ctx context.Context) (SessionLink, error) {
	var out SessionLink
	_, err := c.call(ctx, http.MethodPost, "/v1/session/links", nil, &out)
	return out, err
}

// Session says as whom this client is known.
func (c *Client) Session(ctx context.Context) (Session, error) {
	var out Session
	_, err := c.call(ctx, http.MethodGet, "/v1/session", nil, &out)
	return out, err
}

// EndSessions signs everybody out of the web UI of this manager.
func (c *Client) EndSessions(ctx context.Context) error {
	_, err := c.call(ctx, http.MethodDelete, "/v1/sessions", nil, nil)
	return err
}
