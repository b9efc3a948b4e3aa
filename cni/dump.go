package cni

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// dumpTries is how often a list is read that changes each time. Pods come and go by the hundred, in a second at most.
const dumpTries = 100

// whole reads a list of the kernel until it did not change meanwhile: one that did may lack what was there all the
// time, and who acts on what is missing would make or delete the wrong thing.
func whole[T any](list func() ([]T, error)) ([]T, error) {
	for try := 1; ; try++ {
		all, err := list()
		if err == nil {
			return all, nil
		}
		if try == dumpTries || !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, err
		}
	}
}

// addressesOf are those of an interface.
func addressesOf(link netlink.Link, family int) ([]netlink.Addr, error) {
	return whole(func() ([]netlink.Addr, error) { return netlink.AddrList(link, family) })
}
