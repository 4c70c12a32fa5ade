package api

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// SwitchCertificate is what managers remember of a certificate by which an OpenFlow switch may connect. It names the datapath ids that the
// switch's process may have: Open vSwitch presents one certificate for all its bridges.
type SwitchCertificate struct {
	ID          string    `json:"id"`           // 16 hexadecimal digits, from the hash of its public key
	DatapathIDs []string  `json:"datapath_ids"` // each of 16 hexadecimal digits
	Created     time.Time `json:"created"`
	Expires     time.Time `json:"expires"`
	Certificate string    `json:"certificate,omitempty"` // PEM, in the answer to POST only
	Authority   string    `json:"authority,omitempty"`   // PEM, by which the switch knows the manager; in that answer only
}

// SwitchCertificateRequest is the body of POST /v1/switch-certificates.
type SwitchCertificateRequest struct {
	DatapathIDs []string `json:"datapath_ids"`      // hexadecimal
	Request     string   `json:"request"`           // PKCS #10 in PEM, ECDSA P-256
	Life        string   `json:"life,omitempty"`    // as 720h; default 8760h
	Replace     bool     `json:"replace,omitempty"` // revoke all others that name one of the datapath ids
}

// NewSwitchCertificate has a certificate made for a switch.
func (c *Client) NewSwitchCertificate(ctx context.Context, r SwitchCertificateRequest) (SwitchCertificate, error) {
	var out SwitchCertificate
	_, err := c.call(ctx, http.MethodPost, "/v1/switch-certificates", r, &out)
	return out, err
}

// SwitchCertificates lists those that are accepted or have expired, the oldest first.
func (c *Client) SwitchCertificates(ctx context.Context) ([]SwitchCertificate, error) {
	var out List[SwitchCertificate]
	_, err := c.call(ctx, http.MethodGet, "/v1/switch-certificates", nil, &out)
	return out.Items, err
}

// RevokeSwitchCertificate has a certificate refused from now on; a connection that uses it ends within seconds.
func (c *Client) RevokeSwitchCertificate(ctx context.Context, id string) error {
	_, err := c.call(ctx, http.MethodDelete, "/v1/switch-certificates/"+url.PathEscape(id), nil, nil)
	return err
}
