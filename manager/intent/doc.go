// Package intent changes what is declared: specs, secrets, verbs of functions. An edit loads all objects, changes them, checks the whole, asks the hosts,
// settles placements and policies' owners, and becomes one transaction or nothing.
package intent
