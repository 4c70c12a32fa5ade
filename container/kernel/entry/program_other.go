//go:build !amd64 && !arm64

package entry

var program []byte
