//go:build !amd64 && !arm64

package event

var program []byte
