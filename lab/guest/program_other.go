//go:build !amd64 && !arm64

package guest

var probe []byte
