package cni

import (
	"fmt"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
)

// nftRoom is what one transaction may have in bytes: it is sent as one message, and the kernel answers each change in
// it before any answer is read. The usual buffer of 208 KiB has room for the answers of some 270, and the kernel drops
// the others (ENOBUFS), and for what is sent of some 700 pods (EMSGSIZE). It is a bound, nothing is allocated for it.
const nftRoom = 16 << 20

// openNFT opens a connection to nf_tables with room for the pods of a large node in one transaction.
func openNFT(options ...nftables.ConnOption) (*nftables.Conn, error) {
	room := func(c *netlink.Conn) error {
		if err := c.SetReadBuffer(nftRoom); err != nil {
			return err
		}
		return c.SetWriteBuffer(nftRoom)
	}
	c, err := nftables.New(append(options, nftables.WithSockOptions(room))...)
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return c, nil
}

// elementsAtOnce is how many elements one change has: their list has at most 64 KiB, and one has some 150 bytes.
const elementsAtOnce = 256

// inParts calls change for parts of elements that fit a message.
func inParts(in *nftables.Set, all []nftables.SetElement, change func(*nftables.Set, []nftables.SetElement) error) error {
	for part := range slices.Chunk(all, elementsAtOnce) {
		if err := change(in, part); err != nil {
			return err
		}
	}
	return nil
}

// nftSocket is a connection to nf_tables that stays open: when one is closed, the kernel waits some milliseconds until
// what has been removed is not in use any more (a grace period of RCU), and so does whoever closes it.
type nftSocket struct {
	mu sync.Mutex
	c  *nftables.Conn
}

// do carries out what change asks for in one transaction.
func (n *nftSocket) do(change func(c *nftables.Conn) error) (err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.c == nil {
		if n.c, err = openNFT(nftables.AsLasting()); err != nil {
			return err
		}
	}
	if err = change(n.c); err == nil {
		err = n.c.Flush()
	}
	if err != nil {
		// It may hold answers, or changes, that are for nobody.
		_ = n.c.CloseLasting()
		n.c = nil
	}
	return err
}

func (n *nftSocket) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.c != nil {
		_ = n.c.CloseLasting()
		n.c = nil
	}
}
