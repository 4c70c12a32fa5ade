// Package keys has what the managers of a store share and no answer of the API contains: the certificate authority, the key of link discovery, and
// the key of users' secrets.
package keys
