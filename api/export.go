package api

import (
	"context"
	"net/http"
)

// Export is the answer of GET /v1/document: what is declared, such that applying it changes nothing.
type Export struct {
	Document Document `json:"document"`
	Secrets  []string `json:"secrets,omitempty"` // that functions use; their values are not here
}

// Export reads what is declared.
func (c *Client) Export(ctx context.Context) (Export, error) {
	var out Export
	_, err := c.call(ctx, http.MethodGet, "/v1/document", nil, &out)
	return out, err
}
