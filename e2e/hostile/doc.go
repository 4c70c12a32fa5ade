// Package hostile attacks a Weir from where its threat model puts an enemy (docs/security.md), and counts what others notice of it.
package hostile
