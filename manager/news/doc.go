// Package news takes what agents and the router report: statuses, events, switches, assignments. What is not the reporter's own is left out, and only what
// differs is written.
package news
