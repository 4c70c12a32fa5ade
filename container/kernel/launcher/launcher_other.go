//go:build !amd64 && !arm64

package launcher

var code []byte
