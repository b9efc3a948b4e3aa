// Package source owns the set of pods this node should run. It reads them from a directory of manifests and says what changed.
package source

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Config says where the manifests are and whose they are.
type Config struct {
	Dir      string
	NodeName string
	Rescan   time.Duration
	Log      *slog.Logger
	Report   func(Problem)
}

// Update is the latest desired pod of a key, or its removal.
type Update struct {
	Key    types.NamespacedName
	Pod    *corev1.Pod
	File   string
	Synced bool
}

// Problem is what is wrong with a file.
type Problem struct {
	File     string
	Pod      string
	Errors   []string
	Warnings []string
}

// Source watches one directory.
type Source struct{ cfg Config }

// New returns a Source that has not begun to watch.
func New(cfg Config) *Source { return &Source{cfg: cfg} }

// Run blocks until ctx ends.
func (s *Source) Run(ctx context.Context, out chan<- Update) error { <-ctx.Done(); return nil }

// Problems returns what is wrong now.
func (s *Source) Problems() []Problem { return nil }
