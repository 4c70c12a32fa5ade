// Package access has the tokens: those for the API, with a role and an end, and those with which a host joins once.
package access
