// Package catalogue holds the network functions that come with Weir, a folder each: program, image recipe (image.yaml), README,
// tests. `go run ./catalogue/build` makes their images, digests.txt lists what everybody gets; rig is what their tests run in.
package catalogue
