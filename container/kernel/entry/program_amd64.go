package entry

import _ "embed"

//go:embed entry_amd64
var program []byte
