package guest

import _ "embed"

//go:embed probe_amd64
var probe []byte
