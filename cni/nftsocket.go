package cni

import (
	"fmt"
	"sync"

	"github.com/google/nftables"
)

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
		if n.c, err = nftables.New(nftables.AsLasting()); err != nil {
			return fmt.Errorf("open nftables: %w", err)
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
