// Package oci turns what the CRI says about a container, and what its image says, into an OCI runtime specification.
package oci
