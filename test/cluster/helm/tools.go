//go:build tools

// Package helm names Helm's command. What this module needs is of the Kubernetes that the product is of, so that what
// both are made of is compiled once.
package helm

import _ "helm.sh/helm/v4/cmd/helm"
