// Package ui serves the web UI and keeps its sessions. The UI is a client of the API; a session stands for the token, or the user of the Unix socket, that
// asked for it, and may what that one may. It owns links, sessions and their file, and the checks of what browsers send; not what the UI shows (folder web).
package ui
