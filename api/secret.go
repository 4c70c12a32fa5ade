package api

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"
)

// KindSecret is what functions get as files and nobody can read through the API.
const KindSecret Kind = "secret"

// Bounds of secrets.
const (
	MaxSecret          = 64 << 10 // bytes
	MaxFunctionSecrets = 16
	SecretsDir         = "/run/secrets" // in a function, unless its spec names another path
)

// Secret is a secret without its value, which no answer contains.
type Secret struct {
	Meta
	UsedBy []string `json:"used_by"` // functions
}

// SecretRequest is the body of PUT /v1/secrets/NAME.
type SecretRequest struct {
	Value []byte `json:"value"` // base64 in JSON; 1 to MaxSecret bytes
}

// FunctionSecret is a secret on its way to the host of a function. Version is that in Function.Secrets.
type FunctionSecret struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Value   []byte `json:"value"`
}

// ParseSecret reads an entry of a function's secrets: "db", a file of that name in SecretsDir, or "db:/run/db/password".
func ParseSecret(text string) (name, target string, err error) {
	name, target, placed := strings.Cut(text, ":")
	if err := CheckName(name); err != nil {
		return "", "", fmt.Errorf("secret %q: %w", text, err)
	}
	if !placed {
		return name, SecretsDir + "/" + name, nil
	}
	if !path.IsAbs(target) || path.Clean(target) != target || target == "/" {
		return "", "", fmt.Errorf("secret %q: want NAME or NAME:PATH with an absolute path, as in db:/run/db/password", text)
	}
	for _, dir := range []string{"/proc", "/sys", "/dev", "/run/weir", "/etc/weir"} {
		if target == dir || strings.HasPrefix(target, dir+"/") {
			return "", "", fmt.Errorf("secret %q: want a path that is not in %s", text, dir)
		}
	}
	return name, target, nil
}

// checkSecrets finds what is wrong with a function's list.
func (c *check) checkSecrets(list []string) {
	if len(list) > MaxFunctionSecrets {
		c.add("secrets", "", "%d secrets: want at most %d", len(list), MaxFunctionSecrets)
		return
	}
	taken := map[string]bool{}
	for i, text := range list {
		where := fmt.Sprintf("secrets[%d]", i)
		_, target, err := ParseSecret(text)
		c.err(where, err)
		if err == nil && taken[target] {
			c.add(where, "", "two secrets at %s", target)
		}
		taken[target] = true
	}
}

// PutSecret makes a secret or replaces its value; functions that use it are restarted.
func (c *Client) PutSecret(ctx context.Context, name string, value []byte) (Secret, error) {
	var out Secret
	_, err := c.call(ctx, http.MethodPut, "/v1/secrets/"+url.PathEscape(name), SecretRequest{value}, &out)
	return out, err
}

// Secrets lists secrets without their values.
func (c *Client) Secrets(ctx context.Context) ([]Secret, error) {
	var out List[Secret]
	_, err := c.call(ctx, http.MethodGet, "/v1/secrets", nil, &out)
	return out.Items, err
}

// DeleteSecret removes a secret that no function uses.
func (c *Client) DeleteSecret(ctx context.Context, name string) error {
	_, err := c.call(ctx, http.MethodDelete, "/v1/secrets/"+url.PathEscape(name), nil, nil)
	return err
}

// FunctionSecrets reads the secrets of a function: the agent of its host only.
func (c *Client) FunctionSecrets(ctx context.Context, function string) ([]FunctionSecret, error) {
	var out List[FunctionSecret]
	_, err := c.call(ctx, http.MethodGet, "/v1/agent/secrets/"+url.PathEscape(function), nil, &out)
	return out.Items, err
}
