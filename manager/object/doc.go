// Package object has the manager's objects in the form in which they are stored: a spec, a status and a placement of any kind, and operations on
// them. It is pure, but for FollowUp, which reads operations.
package object
