package cni

import (
	"context"
	"errors"
)

// Network is the network of all pods of one agent.
type Network struct{}

// New opens the network.
func New(c Config) (*Network, error) { return nil, errors.ErrUnsupported }

// NewNamespace creates and pins.
func (n *Network) NewNamespace(id string) (path string, err error) { return "", errors.ErrUnsupported }

// RemoveNamespace unpins.
func (n *Network) RemoveNamespace(id string) error { return errors.ErrUnsupported }

// Setup adds a pod.
func (n *Network) Setup(ctx context.Context, p Pod) (Result, error) {
	return Result{}, errors.ErrUnsupported
}

// Teardown removes a pod.
func (n *Network) Teardown(ctx context.Context, p Pod) error { return errors.ErrUnsupported }

// Status is nil when pods can be set up.
func (n *Network) Status() error { return errors.ErrUnsupported }

// Collect frees.
func (n *Network) Collect(ctx context.Context, live []string) error { return errors.ErrUnsupported }

// Purge removes all.
func (n *Network) Purge(ctx context.Context) error { return errors.ErrUnsupported }

// Close stops watching the configuration directory. Pods keep their network.
func (n *Network) Close() error { return nil }

// PluginMain runs as a CNI plugin.
func PluginMain() {}
