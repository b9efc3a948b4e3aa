//go:build tools

// Package kueue names a published operator: a module of its own, since it is made of another Kubernetes than the rest.
package kueue

import _ "sigs.k8s.io/kueue/cmd/kueue"
