package api

import (
	"context"
	"io"
	"net/http"
)

// Backup streams all that the store holds, secrets included, as package api/backup reads it. The caller closes it.
func (c *Client) Backup(ctx context.Context) (io.ReadCloser, error) {
	resp, err := c.do(ctx, http.MethodGet, "/v1/backup", nil, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}
