// Package guest runs programs in what the lab calls a host kind: on the bare host, beside a Weir that runs, in a container of any runtime, in a virtual
// machine. All kinds have the same root file system, made of this machine's own programs and their libraries, so the same binary is measured everywhere.
//
// It owns the instance NAME-z of a run: the root, the corpora, the guests, the lines to their peers. It does not know what is measured.
package guest

//go:generate sh -c "cd probe && ./build.sh"
